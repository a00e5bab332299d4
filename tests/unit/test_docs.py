"""What README and docs tell people to type, write and click is real."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import yaml
from aiohttp import web
from support.insight import insight
from support.pages import PAGES, TREE, anchors, blocks, links, prose
from support.reloads import Reloads

from router.arguments import parser
from router.base.clock import ManualClock
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.controlplane.admin import AdminServer, AdminSources
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec, Report
from router.core.observe import Outcome, Usage
from router.core.request import Chain, Turn
from router.settings.build import build_plan
from router.settings.check import check_files
from router.settings.load import load_policy

SEPARATORS = {"&&", "||", ";", "|", "&", ">", ">>"}


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each simple command in a shell block: the page, and its words without variables set before it."""
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if word in SEPARATORS:
                    if words:
                        yield str(block.page.relative_to(TREE)), words
                    words = []
                elif words or re.fullmatch(r"[A-Z_]+=.*", word) is None:
                    words.append(word)


COMMANDS = list(commands())


@pytest.mark.parametrize(
    ("page", "words"),
    [pytest.param(page, words, id=" ".join(words)) for page, words in COMMANDS if words[0] == "homing"],
)
def test_every_homing_command_is_one_that_the_parser_takes(page, words):
    assert parser().parse_args(words[1:])


def test_the_example_for_compose_is_whole(tmp_path):
    """What it mounts is declared, its configs are good ones, and whoever dials finds a listener."""
    environ = {"HOMING_SECRET": "a secret of the fleet, long enough"}
    whole = yaml.safe_load((TREE / "docs/compose-kv.yaml").read_text())
    files = {}
    for name, config in whole["configs"].items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(config["content"])
        assert check_files([path], environ).faults == ()
        files[name] = yaml.safe_load(config["content"])
    services = whole["services"]
    mounted = {volume.split(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {name for name in mounted if not name.startswith("$")} == set(whole["volumes"])
    agents = {
        f"{name}:{files[name]['listen'].split(':')[1]}": files[name] for name in files if "agent" in name
    }
    assert set(agents) == {f"{name}:7710" for name in services if name.startswith("agent")}
    for replica in files["router"]["replicas"]:
        assert agents[replica["kv_agent"]]["kv_agent"] == replica["name"]
        assert replica["url"].removeprefix("http://").split(":")[0] in services
    for agent in agents.values():
        for peer in agent["peers"]:
            assert agents[peer["address"]]["kv_agent"] == peer["name"]
    for one in services.values():
        assert all(use["source"] in files for use in one.get("configs", ()))


def test_every_make_command_has_a_target():
    asked = {word for _, words in COMMANDS if words[0] == "make" for word in words[1:]}
    targets = set(re.findall(r"^([a-z-]+):", (TREE / "Makefile").read_text(), re.MULTILINE))
    assert asked >= {"demo", "test"}
    assert asked <= targets


def test_the_readme_opens_with_the_two_commands():
    assert blocks("sh")[0].text == "make demo\nmake test\n"


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.place)
        for block in blocks("yaml")
        if "strategy: my_strategies" not in block.text
    ],
)
def test_every_file_shown_is_without_fault(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shown.yaml").write_text(block.text)
    environ = dict.fromkeys([*re.findall(r"api_key_env: (\w+)", block.text), "HOMING_SECRET"], "x")
    found = check_files([Path("shown.yaml")], environ)
    assert found.faults == ()
    own = [notice for notice in found.notices if notice.startswith("shown.yaml")]
    assert own == [], "a page must not recommend what has no effect"


def admin_routes() -> set[str]:
    """`METHOD /path/{parameter}` of the admin port."""
    sources = AdminSources(
        metrics=str,
        policy=str,
        explain=lambda path, body, session, tenant: {},
        reloads=Reloads(),
        insight=insight(),
    )
    server = AdminServer(Engine([_plan()], rng=Random(0)), ManualClock(), sources)
    app = web.Application()
    server.add_routes(app.router)
    return {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.method != "HEAD"
    }


def _plan():
    return build_plan(load_policy("home").value)


def test_every_address_that_is_called_is_served():
    called = set()
    for page, words in COMMANDS:
        for word in words:
            if match := re.fullmatch(r"http://127\.0\.0\.1:(9090|8080)(/[^?]*)?(?:\?.*)?", word):
                method = words[words.index("-X") + 1] if "-X" in words else "GET"
                called.add((match[1], method, match[2] or "", page))
    routes = [
        re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route)).replace(r"\ ", " "))
        for route in admin_routes()
    ]
    for port, method, path, page in called:
        if port == "9090" and path:
            assert any(route.fullmatch(f"{method} {path}") for route in routes), (page, method, path)
        elif path:
            assert path.startswith("/v1/"), (page, path)
    assert len(called) > 8


def test_every_admin_route_is_described_and_no_other():
    described = re.findall(
        r"^\| `((?:GET|POST|DELETE|PUT) /\S*)` \|", _page("docs/operating.md"), re.MULTILINE
    )
    assert set(described) == admin_routes()


def _page(name: str) -> str:
    return (TREE / name).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_every_link_leads_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_every_page_is_reachable_from_the_readme():
    seen: set[Path] = set()
    waiting = [TREE / "README.md"]
    while waiting:
        page = waiting.pop()
        seen.add(page)
        for target in links(page):
            linked = (page.parent / target.partition("#")[0]).resolve()
            if linked.suffix == ".md" and linked.is_file() and linked not in seen:
                waiting.append(linked)
    assert set(PAGES) <= seen


def test_every_module_and_file_that_is_named_exists():
    for page in PAGES:
        for name in re.findall(r"`([\w/.-]+\.(?:py|yaml|toml|sh))`", prose(page)):
            if name not in ("my_strategies.py", "body.json"):
                places = (TREE / name, TREE / "router" / name)
                names = [path.name for path in (TREE / "router").rglob("*.py")]
                assert any(place.exists() for place in places) or name in names, (page.name, name)


def test_every_test_that_is_named_exists():
    written = "\n".join(path.read_text() for path in (TREE / "tests").rglob("test_*.py"))
    for page in PAGES:
        for name in re.findall(r"`(test_\w+)`", prose(page)):
            assert re.search(rf"def {name}\(", written), (page.name, name)


def test_the_strategy_shown_works(tmp_path, monkeypatch):
    (source,) = [block.text for block in blocks("python") if "my_strategies.py" in block.text]
    (policy,) = [block.text for block in blocks("yaml") if "strategy: my_strategies" in block.text]
    (tmp_path / "my_strategies.py").write_text(source)
    (tmp_path / "roomy.yaml").write_text(policy)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    engine = Engine([build_plan(load_policy("roomy.yaml").value)], rng=Random(0))
    specs = [ReplicaSpec(ReplicaId(name), f"http://{name}:80") for name in ("a", "b", "c")]
    engine.set_replicas(specs, 0.0)
    for spec, capacity in zip(specs, (20_000, 50_000, None), strict=True):
        engine.probe_passed(spec.id, 0.0)
        engine.report(spec.id, Report(kv_capacity_tokens=capacity), 0.0)

    def take(prompt_tokens: int, hashes: tuple[int, ...]) -> tuple[str, str]:
        ends = tuple(4 * prompt_tokens * (at + 1) // len(hashes) for at in range(len(hashes)))
        turn = Turn(
            "/v1/chat/completions",
            "m",
            OPEN_TENANT,
            SessionKey("s"),
            "x",
            Chain(hashes, ends, 1),
            stream=True,
        )
        with_room = engine.admit(turn, 1.0)
        with_room.first_byte(1.0)
        with_room.end(Outcome.COMPLETED, 1.0, Usage(prompt_tokens, 0))
        return with_room.decision.replica, with_room.decision.reason

    assert take(40_000, (1, 2)) == ("b", "most room")
    assert take(48_000, (1, 2, 3)) == ("b", "home, with room")
    assert take(48_500, (1, 2, 3, 4)) == ("a", "most room"), "home has less than spare_tokens left"
