"""A shadow policy in a whole router: it decides on live traffic and changes nothing."""

from dataclasses import replace
from typing import Any

from support.fleet import LASTING, MODEL, fleet

from router.settings.load import load_policy


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_what_another_policy_would_have_brought_is_shown() -> None:
    async with fleet(3, config={"shadow": "home"}, policy={"strategy": "round-robin"}) as running:
        replicas = []
        for session in range(3):
            messages = [user(f"Session {session} asks. " * 200)]
            for _ in range(4):
                answer = await running.chat(messages, headers={"X-Session-ID": f"s{session}"})
                replicas.append(answer.replica)
                messages += [answer.message, user("Go on. " * 20)]
        assert len(set(replicas)) == 3
        shown = (await running.admin.get("/api/shadow?limit=5")).json()
        assert (shown["policy"], shown["turns"], shown["pinned"]) == ("home", 12, 0)
        assert shown["disagreed"] >= 4
        assert shown["moves"]["live"] > 4
        assert shown["moves"]["shadow"] == 0
        assert {"live": "new", "shadow": "new", "turns": 3} in shown["kinds"]
        assert sum(each["turns"] for each in shown["kinds"] if each["shadow"] == "home") == 9
        gain = shown["cached_tokens"]["gain"]
        assert gain > 3000
        # What replicas report is what the live policy got; the shadow's figure is held against it by eye.
        delivered = sum(record.cached_tokens or 0 for _, record in running.records())
        assert abs(shown["cached_tokens"]["live"] - delivered) < 0.2 * shown["cached_tokens"]["of"]
        assert shown["mean_expected_ttft_ms"]["gain"] > 0
        [last, *_] = shown["disagreements"]
        assert last["live"]["replica"] != last["shadow"]["replica"]
        assert last["gain_tokens"] == last["shadow"]["cached_tokens"] - last["live"]["cached_tokens"]
        text = (await running.admin.get("/metrics")).text
        found = shown["cached_tokens"]["shadow"]
        assert f'homing_shadow_cached_tokens_total{{policy="home",course="shadow"}} {found}' in text
        assert running.router.shadow is not None
        assert running.router.shadow.in_flight() == 0


async def test_without_a_shadow_there_is_none_to_ask() -> None:
    async with fleet(1) as running:
        answer = await running.admin.get("/api/shadow")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "no_shadow"
        assert "homing_shadow" not in (await running.admin.get("/metrics")).text
        assert running.router.shadow is None


async def test_a_shadow_hears_of_drains_failures_and_departures() -> None:
    async with fleet(2, config={"shadow": "home"}) as running:
        messages = [user("Hello. " * 300)]
        first = await running.chat(messages, headers={"X-Session-ID": "one"})
        running.replicas[first.replica].fault("status:500", count=1)
        moved = await running.chat(messages, headers={"X-Session-ID": "one"})
        assert moved.replica != first.replica
        token = {"X-Homing-Token": running.admin_token}
        await running.admin.post(f"/api/replicas/{moved.replica}/drain", headers=token)
        back = await running.chat(messages, headers={"X-Session-ID": "one"})
        assert back.replica == first.replica
        body = {"model": MODEL, "messages": messages, **LASTING}
        async with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_raw())
        shown = (await running.admin.get("/api/shadow")).json()
        assert (shown["turns"], shown["disagreed"], shown["refused"]) == (4, 0, {"live": 0, "shadow": 0})


async def test_another_policy_takes_its_place_while_the_router_runs() -> None:
    async with fleet(2, config={"shadow": "home"}) as running:
        await running.chat([user("Hello. " * 300)])
        settings = running.router.reloader.settings
        assert settings.loaded.shadow is not None
        other = replace(settings.loaded, shadow=load_policy("ring"))
        running.router._apply(replace(settings, loaded=other))
        shown = (await running.admin.get("/api/shadow")).json()
        assert (shown["policy"], shown["turns"]) == ("ring", 0)
        await running.chat([user("Hello. " * 300)])
        assert (await running.admin.get("/api/shadow")).json()["turns"] == 1
