"""The dashboard in a real Chromium: it shows what the API says, goes on through a restart, and cannot be used
to smuggle anything in."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support.browser import Browser, eventually
from support.crowd import Crowd
from support.fleet import QUICK, fleet, words
from support.reloads import Reloads

from router.base.ids import ReplicaId
from router.controlplane.reload import Outcome, Reload

pytestmark = pytest.mark.timeout(400)

VIEWS = ("/", "/fleet", "/sessions", "/decisions", "/queue", "/flows", "/hits", "/policy", "/shadow")


@asynccontextmanager
async def serving(crowd: Crowd, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    await crowd.server.start(host, port)
    try:
        yield f"http://127.0.0.1:{crowd.server.port}"
    finally:
        await crowd.server.close()


async def api(base: str, path: str, **headers: str) -> Any:
    async with aiohttp.ClientSession() as http, http.get(base + path, headers=headers) as answer:
        assert answer.status == 200
        return await answer.json()


def lively(size: int = 5, sessions: int = 30, turns: int = 300, **more: Any) -> Crowd:
    """A fleet with some history."""
    crowd = Crowd([f"gpu-{at}" for at in range(size)], **more)
    crowd.begin(sessions)
    crowd.turns(turns, over_s=600.0, breaking=0.05)
    return crowd


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": words(900, "agent")}, {"role": "user", "content": text}]


# --- it shows what the API says --------------------------------------------------------------------


async def test_a_router_at_work_is_shown_as_the_api_tells_it_and_live(browser: Browser) -> None:
    async with fleet(2, settings=QUICK, probe="1s") as running:
        answered = await running.chat(chat("hello"), headers={"X-Session-ID": "agent-1"})
        await browser.open(running.admin_url)
        assert await browser.js("document.title") == "Overview · Homing"
        assert (await browser.text("#ready"), await browser.text("#state")) == ("ready", "Live")
        assert "Nothing needs attention" in await browser.text()

        await browser.go("/decisions")
        [row] = await browser.rows("Decisions")
        decision = await running.decision()
        assert row[1].rstrip("…") == decision["session"][:10]
        assert row[2:4] == [answered.kind, answered.replica] == ["new", decision["replica"]]

        # What happens meanwhile is shown without anybody's doing.
        history = [*chat("hello"), answered.message, {"role": "user", "content": "go on"}]
        await running.chat(history, headers={"X-Session-ID": "agent-1"})
        await browser.until("document.querySelectorAll('[aria-label=Decisions] tbody tr').length === 2")
        newest = (await browser.rows("Decisions"))[0]
        assert newest[2:4] == ["home", answered.replica]

        await browser.go("/sessions")
        [session] = (await running.admin.get("/api/sessions")).json()["sessions"]
        [row] = await browser.rows("Sessions")
        assert row[0].rstrip("…") == session["key"][:10]
        assert row[1] == session["home"]
        assert (row[3], row[4]) == (str(session["turns"]), "0")

        await browser.click("main tbody a.key")
        await browser.until("document.title === 'Session · Homing' && !document.querySelector('.loading')")
        [stay] = await browser.rows("Stays")
        assert (stay[0], stay[3], stay[5]) == (answered.replica, "2", "new")
        assert [turn[2] for turn in await browser.rows("Last turns")] == ["home", "new"]

        await browser.go("/fleet")
        shown = {row[0]: row[1] for row in await browser.rows("Replicas")}
        assert shown == {"r0": "healthy", "r1": "healthy"}
        await running.replicas["r1"].kill()
        await browser.until("document.querySelector('#tabs .badge.bad')?.textContent === '1 down'")
        assert {row[0]: row[1] for row in await browser.rows("Replicas")}["r1"] == "down"

        await browser.go("/policy")
        assert (
            await browser.js("document.querySelector('pre.file').textContent")
            == (await running.admin.get("/api/policy")).text
        )


async def test_breakers_of_pulls_are_shown_and_one_that_is_open_needs_attention(browser: Browser) -> None:
    crowd = lively(turns=5)
    crowd.breakers = {ReplicaId("r0"): "closed", ReplicaId("r1"): "open", ReplicaId("r2"): "returning"}
    async with serving(crowd) as base:
        await browser.open(base)
        assert "nothing is pulled from r1 for now" in await browser.text()
        await browser.go("/policy")
        assert [row[:2] for row in await browser.rows("Pulls by source")] == [
            ["r0", "closed: pulled from"],
            ["r1", "open: not pulled from, for now"],
            ["r2", "returning: one pull may be tried"],
        ]


async def test_the_figures_above_all_are_those_of_the_api(browser: Browser) -> None:
    crowd = lively()
    async with serving(crowd) as base:

        async def overview_agrees() -> None:
            told = await api(base, "/api/overview")
            tiles = await browser.js(
                "[...document.querySelectorAll('.tile strong')].map((each) => each.textContent)"
            )
            assert tiles[0] == f"{100 * told['lately']['hit_rate']:.1f}%"
            fleet_of = told["fleet"]
            assert tiles[3:] == [str(fleet_of[name]) for name in ("in_flight", "held", "sessions_known")]

        async def hits_agree() -> None:
            kinds = (await api(base, "/api/overview"))["lately"]["kinds"]
            rows = {row[0]: row for row in await browser.rows("Prompt tokens by kind")}
            assert rows.keys() == kinds.keys()
            assert all(rows[kind][1] == str(kinds[kind]["turns"]) for kind in kinds)

        await browser.open(base)
        await eventually(overview_agrees)
        await browser.go("/hits")
        await eventually(hits_agree)
        totals = (await api(base, "/api/breaks"))["totals"]
        assert totals
        assert [row[2] for row in await browser.rows("Broken chains by cause")] == [
            str(each["turns"]) for each in totals
        ]


async def test_a_bill_has_its_options_in_columns_and_marks_the_cheapest_and_the_chosen(
    browser: Browser,
) -> None:
    crowd = lively(size=12, sessions=60)
    async with serving(crowd) as base:
        decisions = (await api(base, "/api/decisions?limit=1000"))["decisions"]
        decision = next(each for each in decisions if each.get("options") and each["kind"] == "home")
        await browser.open(base, f"/decisions/{decision['id']}")
        options = sorted(decision["options"], key=lambda option: option["price_ms"])
        heads = await browser.js(
            "[...document.querySelectorAll('.bill thead .opt')].map((each) =>"
            " [each.querySelector('.mark').textContent, each.querySelector('.name').textContent,"
            " each.classList.contains('chosen')])"
        )
        assert heads[0][1] == options[0]["replica"]
        assert "cheapest" in heads[0][0]
        assert [head[1] for head in heads if head[2]] == [decision["replica"]]
        assert [("chosen" in head[0]) for head in heads] == [head[2] for head in heads]
        rows = {row[0]: row[1:] for row in await browser.rows("The bill")}
        assert list(rows)[:9] == [
            "Wait",
            "Fetch",
            "Compute",
            "Crowd",
            "Displacement",
            "Move",
            "Residue",
            "Risk",
            "Price",
        ]
        assert rows["Price"][0] == f"{options[0]['price_ms']:,.1f}"
        assert rows["Compute"][0] == f"{options[0]['compute_ms']:,.1f}"
        # Few at first, all on demand.
        assert len(heads) < len(options)
        await browser.click("main button.link")
        assert await browser.js("document.querySelectorAll('.bill thead .opt').length") == len(options)


async def test_what_moved_is_drawn_and_listed_and_what_waits_is_shown(browser: Browser) -> None:
    crowd = lively(size=3, sessions=60)
    crowd.engine.drain(ReplicaId("gpu-0"), True)
    crowd.turns(120, over_s=120.0)
    crowd.engine.drain(ReplicaId("gpu-0"), False)
    # More at once than there is room for.
    for session in crowd.sessions:
        if not session.busy:
            crowd.send(session, 8)
    async with serving(crowd) as base:

        async def flows_agree() -> None:
            told = await api(base, "/api/moves?limit=60")
            assert told["flows"]
            ribbons = await browser.js("document.querySelectorAll('svg.flows path.ribbon').length")
            assert ribbons >= min(16, len(told["flows"]))
            assert [row[:3] for row in await browser.rows("Flows")] == [
                [flow["source"], flow["target"], str(flow["pulls"])] for flow in told["flows"]
            ]
            assert len(await browser.rows("The latest moves")) == len(told["moves"])

        async def queue_agrees() -> None:
            held = (await api(base, "/api/held"))["held"]
            assert held
            assert [row[2] for row in await browser.rows("Held turns")] == [each["replica"] for each in held]
            assert await browser.text("#tabs .badge.warn") == str(len(held))

        await browser.open(base, "/flows")
        await eventually(flows_agree)
        await browser.go("/queue")
        await eventually(queue_agrees)


async def test_settings_that_were_refused_are_shown_with_every_fault(browser: Browser) -> None:
    reloads = Reloads()
    crowd = lively(turns=20, reloads=reloads)
    async with serving(crowd) as base:
        await browser.open(base, "/policy")
        assert "those of the start" in await browser.text()
        faults = ("home.yaml:3: strategy: unknown", "home.yaml:9: price.move: is no duration")
        reloads.last = Reload(Outcome.REFUSED, "SIGHUP", crowd.clock.now(), ("policies: a → b",), faults)
        await browser.until("document.querySelectorAll('.faults li').length === 2")
        assert await browser.js(
            "[...document.querySelectorAll('.faults li')].map((each) => each.textContent)"
        ) == (list(faults))
        await browser.go("/")
        assert "settings were refused" in await browser.text(".notices .fault")


async def test_the_shadow_is_shown_where_there_is_one(browser: Browser) -> None:
    crowd = lively()
    async with serving(crowd) as base:
        await browser.open(base, "/shadow")
        told = await api(base, "/api/shadow")
        assert f"of {told['turns']} turns elsewhere" in await browser.text(".head")
        assert len(await browser.rows("Decisions by kind")) == len(told["kinds"])
    async with fleet(1) as running:
        await browser.open(running.admin_url, "/shadow")
        assert "No policy decides in the shadow" in await browser.text()
        assert not await browser.console(refused=True)


# --- it goes on ------------------------------------------------------------------------------------


async def test_a_restart_of_the_router_is_survived_and_said(browser: Browser) -> None:
    before, after = lively(turns=50), lively(size=7, turns=50)
    async with serving(before) as base:
        port = before.server.port
        await browser.open(base, "/fleet")
        assert len(await browser.rows("Replicas")) == 5
    await browser.until("document.querySelector('#state').textContent.startsWith('Stale since')")
    assert "does not answer" in await browser.text("#banner")
    # What was known is still shown.
    assert len(await browser.rows("Replicas")) == 5
    async with serving(after, port=port):
        await browser.until("document.querySelector('#state').textContent === 'Live'")
        await browser.until("document.querySelectorAll('[aria-label=Replicas] tbody tr').length === 7")
        assert "restarted" in await browser.text("#banner")
        assert not await browser.console(gone=True)


async def test_nothing_is_asked_for_while_nobody_looks(browser: Browser) -> None:
    crowd = lively(turns=50)
    async with serving(crowd) as base:
        await browser.open(base)
        asked = "performance.getEntriesByType('resource').length"
        await browser.js("Object.defineProperty(document, 'hidden', {value: true, configurable: true}) && 1")
        await browser.js("document.dispatchEvent(new Event('visibilitychange'))")
        # The round that is under way may still ask.
        before = -1
        while before != (before := await browser.js(asked)):
            await browser.js("new Promise((done) => setTimeout(done, 5000)).then(() => 1)")
        await browser.js("Object.defineProperty(document, 'hidden', {value: false, configurable: true}) && 1")
        await browser.js("document.dispatchEvent(new Event('visibilitychange'))")
        await browser.until(f"{asked} > {before}")


# --- nobody smuggles anything in -------------------------------------------------------------------

HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    '"><script>window.pwned=1</script>',
    "javascript:window.pwned=1",
    "' onfocus='window.pwned=1' autofocus='",
    "</title><svg onload=window.pwned=1>",
    "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}",
    "../../api/reload?x=1#/fleet",
    "a\u202eb\u0000c%00%3Cscript%3E",
)


async def test_hostile_names_of_replicas_sessions_models_and_tenants_do_nothing(browser: Browser) -> None:
    reloads = Reloads()
    crowd = Crowd(HOSTILE, models=HOSTILE, tenants=HOSTILE, reloads=reloads)
    crowd.policy = f"policy: {HOSTILE[1]}\n"
    crowd.breakers = {ReplicaId(name): "open" for name in HOSTILE}
    crowd.begin(len(HOSTILE), ids=HOSTILE)
    crowd.turns(150, over_s=200.0, breaking=0.2)
    crowd.engine.drain(ReplicaId(HOSTILE[0]), True)
    for _ in range(3):
        crowd.engine.probe_failed(ReplicaId(HOSTILE[1]), HOSTILE[0], crowd.clock.now())
    crowd.turns(60, over_s=50.0)
    reloads.last = Reload(Outcome.REFUSED, HOSTILE[0], crowd.clock.now(), HOSTILE, HOSTILE)
    async with serving(crowd) as base:
        decisions = (await api(base, "/api/decisions?limit=1000&brief=1"))["decisions"]
        ways = [*VIEWS, f"/decisions/{decisions[0]['id']}"]
        await browser.open(base)
        for name in HOSTILE[:2] + HOSTILE[-3:]:
            encoded = await browser.js(f"encodeURIComponent({json.dumps(name)})")
            ways += [f"/fleet/{encoded}", f"/sessions/{encoded}"]
        ways.append(f"/sessions?find={encoded}&home={encoded}")
        links = "[...document.querySelectorAll('main a')].map((link) => link.getAttribute('href'))"
        harmless = (
            "window.pwned === undefined && !document.querySelector('main :is(img, script, iframe, object)')"
            f" && {links}.every((address) => address.startsWith('#/'))"
        )
        for way in ways:
            await browser.go(way)
            assert await browser.js(harmless), way
        # Its link leads to it, whatever it is called.
        for name in (HOSTILE[0], HOSTILE[6]):
            await browser.go("/fleet")
            named = "[...document.querySelectorAll('main tbody a.name')]"
            await browser.js(f"{named}.find((link) => link.textContent === {json.dumps(name)}).click()")
            await browser.until(f"document.querySelector('main h1').textContent === {json.dumps(name)}")
            await browser.until("document.querySelector('.facts dd')")
        assert await browser.js("window.pwned === undefined")


async def test_the_page_may_not_run_what_is_not_its_own(browser: Browser) -> None:
    async with serving(lively(turns=5)) as base:
        await browser.open(base)
        assert await browser.js(
            "(() => { try { document.body.innerHTML = '<b>x</b>'; return false } catch { return true } })()"
        )
        await browser.js(
            "(() => { const s = document.createElement('style'); s.textContent = 'main{display:none}';"
            " document.head.append(s); return 1 })()"
        )
        assert await browser.js("getComputedStyle(document.querySelector('main')).display") != "none"
        # Both were told to the console, as they should be.
        assert len(await browser.console()) == 2


# --- size ------------------------------------------------------------------------------------------


async def test_a_hundred_replicas_and_ten_thousand_sessions_take_a_page_that_is_no_larger(
    browser: Browser,
) -> None:
    crowd = Crowd([f"gpu-{at:03d}" for at in range(100)])
    remembered = crowd.remember(10_000)
    crowd.begin(100)
    crowd.turns(250, over_s=60.0)
    assert crowd.engine.session_count() > 10_000
    nodes = "document.getElementsByTagName('*').length"
    async with serving(crowd) as base:
        for way in VIEWS:
            await (browser.go(way) if browser.base else browser.open(base, way))
            assert await browser.js(nodes) < 8000, way
        await browser.go("/fleet")
        assert len(await browser.rows("Replicas")) == 100
        await browser.go("/sessions")
        assert f"{crowd.engine.session_count() / 1000:.1f}k sessions" in await browser.text(".head")
        assert len(await browser.rows("Sessions")) == 50
        await browser.js("[...document.querySelectorAll('.pages button')].at(-1).click()")
        await browser.until("document.querySelector('.pages .note').textContent.startsWith('51 to 100')")
        wanted = remembered[17]
        await browser.js(f"(document.querySelector('input[name=find]').value = {json.dumps(wanted)}, 1)")
        await browser.click("form.tools button")
        await browser.until("document.querySelectorAll('[aria-label=Sessions] tbody tr').length === 1")
        [row] = await browser.rows("Sessions")
        assert row[0].rstrip("…") == wanted[:10]
        # A long look leaves nothing behind: rows are kept, not made anew.
        await browser.go("/fleet")
        await browser.js("(document.querySelector('main tbody tr').mark = 1)")
        before = await browser.js(nodes)
        seen = await browser.js("performance.getEntriesByName(location.origin + '/api/replicas').length")
        await browser.until(
            f"performance.getEntriesByName(location.origin + '/api/replicas').length >= {seen + 3}"
        )
        assert await browser.js(
            "[...document.querySelectorAll('main tbody tr')].some((row) => row.mark === 1)"
        )
        assert await browser.js(nodes) <= before + 20


# --- people ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_view_is_wider_than_a_phone(browser: Browser, scheme: str) -> None:
    reloads = Reloads()
    crowd = lively(size=14, sessions=60, reloads=reloads)
    crowd.engine.drain(ReplicaId("gpu-3"), True)
    crowd.turns(30, over_s=5.0)
    reloads.last = Reload(Outcome.REFUSED, "SIGHUP", crowd.clock.now(), ("a" * 200,), ("x" * 300,))
    async with serving(crowd) as base:
        decision = (await api(base, "/api/decisions?limit=1&brief=1&kind=home"))["decisions"][0]
        await browser.screen(390, 844, phone=True)
        await browser.prefers(color_scheme=scheme)
        ways = [*VIEWS, "/fleet/gpu-3", f"/sessions/{decision['session']}", f"/decisions/{decision['id']}"]
        for way in ways:
            await (browser.go(way) if browser.base else browser.open(base, way))
            width = await browser.js("document.documentElement.scrollWidth")
            assert width <= 390, way
        light = await browser.js("getComputedStyle(document.body).backgroundColor === 'rgb(245, 246, 248)'")
        assert light == (scheme == "light")


async def test_all_can_be_done_by_keyboard(browser: Browser) -> None:
    async with serving(lively()) as base:
        await browser.open(base)
        focused = "document.activeElement"
        await browser.js("document.activeElement.blur()")
        await browser.press("TAB")
        assert await browser.js(f"{focused}.textContent") == "Skip to content"
        assert await browser.js(f"getComputedStyle({focused}).outlineStyle") == "solid"
        await browser.press("ENTER")
        assert await browser.js(f"{focused}.id") == "main"

        await browser.js("document.querySelector('.brand').focus()")
        for name in ("Overview", "Fleet", "Sessions"):
            await browser.press("TAB")
            assert (await browser.js(f"{focused}.firstChild.textContent")) == name
            assert await browser.js(f"getComputedStyle({focused}).outlineStyle") == "solid"
        await browser.press("ENTER")
        await browser.until("document.querySelector('main h1').textContent === 'Sessions'")
        assert await browser.js(f"{focused}.tagName") == "H1"
        assert (
            await browser.js("document.querySelector('[aria-current=page]').firstChild.textContent")
            == "Sessions"
        )
        await browser.settled()
        wanted = (await api(base, "/api/sessions?limit=1&offset=7"))["sessions"][0]["key"]
        await browser.press("TAB")
        assert await browser.js(f"{focused}.name") == "find"
        await browser.type(wanted)
        await browser.press("ENTER")
        await browser.until("document.querySelectorAll('[aria-label=Sessions] tbody tr').length === 1")
        # The focus stays where it was; behind it are replica, order, button, the table and its first link.
        assert await browser.js(f"{focused}.name") == "find"
        for _ in range(8):
            await browser.press("TAB")
            if await browser.js(f"{focused}.className") == "key":
                break
        await browser.press("ENTER")
        await browser.until("document.title === 'Session · Homing'")
        assert wanted in await browser.js("document.querySelector('main h1').textContent")

        await browser.go("/fleet")
        await browser.js("document.querySelector('thead button').focus()")
        await browser.press("ENTER")
        assert (
            await browser.js("document.querySelector('thead th').getAttribute('aria-sort')") == "descending"
        )
        names = [row[0] for row in await browser.rows("Replicas")]
        assert names == sorted(names, reverse=True)


async def test_every_view_has_landmarks_a_heading_and_named_tables(browser: Browser) -> None:
    async with serving(lively()) as base:
        for way in VIEWS:
            await (browser.go(way) if browser.base else browser.open(base, way))
            assert await browser.js("document.querySelectorAll('header.top, nav, main').length") == 3
            assert await browser.js("document.querySelectorAll('main h1').length") == 1, way
            assert await browser.js(
                "[...document.querySelectorAll('table')].every((t) => t.caption?.textContent)"
            )
            unnamed = "[...document.querySelectorAll('input, select')].filter((f) => !f.labels.length).length"
            assert await browser.js(unnamed) == 0, way
            assert await browser.js("document.querySelectorAll('[role=status], [aria-live]').length") <= 2, (
                way
            )
        assert await browser.js("document.documentElement.lang") == "en"


async def test_who_wants_less_motion_gets_none(browser: Browser) -> None:
    async with serving(lively(turns=50)) as base:
        await browser.prefers(reduced_motion="reduce")
        await browser.open(base)
        assert await browser.js("document.getAnimations().length") == 0
        await browser.prefers(reduced_motion="no-preference")
        await browser.until("document.getAnimations().length > 0")


# --- who may ---------------------------------------------------------------------------------------


async def test_where_a_token_is_wanted_the_page_asks_for_it_and_keeps_it_for_the_tab(
    browser: Browser,
) -> None:
    crowd = lively(turns=20, token="s3cret token")
    async with serving(crowd, host="0.0.0.0") as base:
        await browser.open(base)
        assert await browser.text("main h1") == "Admin token"
        assert "gpu-" not in await browser.js("document.body.innerText")
        assert await browser.js("document.activeElement.name") == "token"
        await browser.type("guessed")
        await browser.press("ENTER")
        await browser.until("document.querySelector('.wrong')?.textContent.includes('does not take')")
        await browser.type("s3cret token")
        await browser.press("ENTER")
        await browser.until("document.querySelector('#state').textContent === 'Live'")
        await browser.settled()
        assert "gpu-" in await browser.text()
        await browser.open(base, "/fleet")
        assert len(await browser.rows("Replicas")) == 5
        assert await browser.js("localStorage.length") == 0
        assert await browser.js("document.cookie") == ""
        await browser.click("#leave")
        await browser.until("document.querySelector('main h1').textContent === 'Admin token'")
        assert not await browser.console(refused=True)


async def test_a_replica_is_drained_from_its_page_with_the_token_and_not_without(browser: Browser) -> None:
    crowd = lively(turns=20)
    async with serving(crowd) as base:
        await browser.open(base, "/fleet/gpu-1")

        def draining() -> bool:
            return crowd.engine.replicas(crowd.clock.now())[1].draining

        await browser.click("main .head button")
        await browser.until("document.querySelector('dialog[open]') !== null")
        await browser.click("dialog button.main")
        await browser.until("document.querySelector('dialog .wrong')?.textContent.includes('admin token')")
        assert not draining()
        await browser.click("dialog input")
        await browser.type("t0ken")
        await browser.press("ENTER")
        await browser.until("document.querySelector('dialog') === null")
        assert draining()
        await browser.until("document.querySelector('main .head button').textContent === 'Give turns again'")
        await browser.click("main .head button")
        await browser.click("dialog button.main")
        await browser.until("document.querySelector('main .head button').textContent === 'Drain…'")
        assert not draining()
        assert not await browser.console(refused=True)
