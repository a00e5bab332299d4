"""The whole of it: a session whose replica is drained or busy goes on at another, with its KV."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.patience import Patience
from support.real_engines import BLOCK, PATIENCE_S, Replica, fleet, text
from support.real_router import Router, router_before

Fleet = tuple[dict[str, Replica], Router]
Messages = list[dict[str, Any]]

# Seeds that make computing dear and pulling cheap, whatever else the machine does; and limits for what hangs.
POLICY = {
    "strategy": "priced",
    "price": {"prefill": {"seed_tokens_per_s": 500}, "pull": {"stall": "60s", "deadline": "60s"}},
}


@pytest.fixture(scope="module")
def homed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Replicas `a` and `b` behind a router."""
    folder = tmp_path_factory.mktemp("router")
    with fleet(folder, "ab") as replicas:
        with router_before(folder, replicas, policy=POLICY) as router:
            yield replicas, router


def begin_at_a(fleet: Fleet, session: str, tokens: int = 5000) -> Messages:
    """A session whose first turn was at `a`; what its next turn says."""
    _, router = fleet
    chance = random.Random(session)
    messages: Messages = [
        {"role": "system", "content": text(chance, 1500)},
        {"role": "user", "content": text(chance, tokens)},
    ]
    router.drain("b", True)
    answer = router.chat(messages, session)
    router.drain("b", False)
    assert answer.headers["x-homing-replica"] == "a"
    reply = answer.json()["choices"][0]["message"]["content"]
    return [
        *messages,
        {"role": "assistant", "content": reply},
        {"role": "user", "content": text(chance, 200)},
    ]


def await_pull(router: Router, messages: Messages, session: str) -> None:
    """Until the router would have `b` pull the turn: agents tell what they hold a moment later."""
    patience = Patience(PATIENCE_S)
    while (would := router.explain(messages, session))["kind"] != "pull":
        assert not patience.is_over, would
        time.sleep(0.05)
    assert would["replica"] == "b"


def goes_on_at_b(fleet: Fleet, messages: Messages, session: str) -> str:
    """The next turn goes to `b`, which pulls all full blocks of what the session has said until now; the
    answer."""
    replicas, router = fleet
    before = replicas["b"].metrics().loaded_tokens()
    answer = router.chat(messages, session)
    assert (answer.headers["x-homing-replica"], answer.headers["x-homing-decision"]) == ("b", "pull")
    pulled = replicas["b"].metrics().loaded_tokens() - before
    assert pulled == answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert pulled >= replicas["a"].count_tokens(messages[:-2]) // BLOCK * BLOCK
    said: str = answer.json()["choices"][0]["message"]["content"]
    return said


def alone(replica: Replica, messages: Messages) -> str:
    """What a replica answers that has nothing from anybody."""
    replica.await_idle()
    replica.forget_cache()
    # Nor from its own agent: a hint that names no source of a tenant that has said nothing before.
    answer = replica.ask(messages, tokens=8, sources=[], tenant="alone")
    assert answer.cached == 0
    said: str = answer.said[0]
    return said


def test_a_session_whose_home_is_drained_is_pulled(homed: Fleet) -> None:
    replicas, router = homed
    messages = begin_at_a(homed, "drained")
    router.drain("a", True)
    try:
        await_pull(router, messages, "drained")
        said = goes_on_at_b(homed, messages, "drained")
    finally:
        router.drain("a", False)
    assert said == alone(replicas["a"], messages)
    # It lives there now.
    messages = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then?"}]
    answer = router.chat(messages, "drained")
    assert (answer.headers["x-homing-replica"], answer.headers["x-homing-decision"]) == ("b", "home")


def test_a_session_whose_home_is_busy_is_pulled(homed: Fleet) -> None:
    replicas, router = homed
    messages = begin_at_a(homed, "busy")
    chance = random.Random("others")
    others: list[Messages] = [[{"role": "user", "content": text(chance, 9000)}] for _ in range(3)]
    router.drain("b", True)
    with ThreadPoolExecutor(len(others)) as pool:
        turns = [pool.submit(router.chat, one, f"other-{at}") for at, one in enumerate(others)]
        try:
            replicas["a"].await_busy()
        finally:
            router.drain("b", False)
        await_pull(router, messages, "busy")
        said = goes_on_at_b(homed, messages, "busy")
    assert {turn.result().headers["x-homing-replica"] for turn in turns} == {"a"}
    assert said == alone(replicas["a"], messages)
