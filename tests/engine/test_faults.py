"""Whatever goes wrong on a block's way: the right answer or a clear error, and every block given back.

Between the replicas' agents are proxies: a fault comes after so many bytes of a transfer, however long these
took.
"""

import concurrent.futures
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from support.kv_proxy import ProxyThread
from support.patience import Patience
from support.real_engines import (
    BLOCK,
    PATIENCE_S,
    REQUEST_S,
    AgentProcess,
    Answer,
    Metrics,
    Replica,
    fleet,
    text,
)

LENGTH = 7000
FULL = (LENGTH - 1) // BLOCK
"""Blocks of a prompt that can be pulled."""
BLOCK_BYTES = 256 * 1024
"""Of the small model: 4 layers, keys and values, 2 heads of 64, float32."""
LIMITS = {"stall_ms": 1000, "deadline_ms": 3000}
PATIENT = {"stall_ms": 250_000, "deadline_ms": 270_000}
LIMIT_S = 200.0
"""For what has to happen while such a load goes on."""
OFFERS, LOADS, PREEMPTIONS = (
    "vllm:homing_offers_total",
    "vllm:homing_loads_total",
    "vllm:num_preemptions_total",
)
GENERATED, RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replica]]:
    """Replicas `a` and `b`."""
    with fleet(tmp_path_factory.mktemp("faults"), "ab", proxied=True) as replicas:
        yield replicas


@pytest.fixture
def a(pair: dict[str, Replica]) -> Replica:
    return pair["a"]


@pytest.fixture
def b(pair: dict[str, Replica]) -> Iterator[Replica]:
    """The one that pulls. Afterwards it is idle, all its blocks are free and nothing in it has failed."""
    replica = pair["b"]
    yield replica
    metrics = replica.await_idle()
    assert metrics.sum("vllm:homing_faults_total") == 0, metrics.about()
    assert metrics.sum(LOADS, reason="overdue") == 0, metrics.about()
    assert "router/connector" not in replica.log.read_text(errors="replace"), "a traceback of ours"


@pytest.fixture
def way(a: Replica) -> Iterator[ProxyThread]:
    """What lies before `a`'s agent. In order again afterwards."""
    proxy = agent_of(a).proxy
    assert proxy is not None
    yield proxy
    proxy.mend()


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> str:
    return text(random.Random(request.node.name), LENGTH)


def agent_of(replica: Replica) -> AgentProcess:
    assert replica.agent is not None
    return replica.agent


def bytes_of(blocks: float) -> int:
    return int(blocks * BLOCK_BYTES)


class Load:
    """What became of one load."""

    def __init__(self) -> None:
        self.loaded = self.missing = 0
        self.reasons: dict[str, float] = {}


@contextmanager
def load_of(replica: Replica) -> Iterator[Load]:
    """What the replica's loads come to meanwhile."""
    found, before = Load(), replica.metrics()
    yield found
    after = replica.metrics()
    for name in ("loaded", "missing"):
        metric = f"vllm:homing_{name}_blocks_total"
        setattr(found, name, int(after.sum(metric) - before.sum(metric)))
    metric = LOADS
    labels = {labels for name, labels, _ in after.samples if name == metric}
    for reason in {one.partition('reason="')[2].partition('"')[0] for one in labels}:
        change = after.sum(metric, reason=reason) - before.sum(metric, reason=reason)
        if change:
            found.reasons[reason] = change


def test_home_is_killed_before_the_fetch(a: Replica, b: Replica, prompt: str) -> None:
    oracle = a.ask(prompt, tokens=8).said[0]
    agent_of(a).kill()
    try:
        answer = b.ask(prompt, tokens=8, sources=["a"])
        assert answer.said[0] == oracle
        assert answer.cached == 0
    finally:
        agent_of(a).start()
    assert a.ask(prompt, tokens=8).said[0] == oracle


@pytest.mark.parametrize("landed", [0, 1, 20, 100])
def test_home_is_killed_during_the_fetch(
    a: Replica, b: Replica, way: ProxyThread, prompt: str, landed: int
) -> None:
    """What landed is kept, the rest computed."""
    reconnected(a, b)
    oracle = a.ask(prompt, tokens=8).said[0]

    def die() -> None:
        agent_of(a).kill()
        way.mend()

    way.faults.hold_after = bytes_of(landed + 0.5)
    killer = way.when_held(die)
    try:
        with load_of(b) as load:
            answer = b.ask(prompt, tokens=8, sources=["a"])
    finally:
        killer.join()
        agent_of(a).start()
    assert answer.said[0] == oracle
    assert load.loaded + load.missing == FULL
    # What was still in the system's buffers when the connection broke is gone with it.
    assert landed // 2 <= load.loaded <= landed
    assert load.reasons == {"source": 1}


def test_home_is_killed_after_the_fetch(a: Replica, b: Replica, prompt: str) -> None:
    reconnected(a, b)
    a.ask(prompt)
    oracle = a.ask(prompt, tokens=8)
    assert b.ask(prompt, sources=["a"]).cached == FULL * BLOCK
    agent_of(a).kill()
    try:
        assert b.ask(prompt, tokens=8, sources=["a"]).said == oracle.said
    finally:
        agent_of(a).start()


def test_the_replicas_own_agent_is_killed_while_it_loads(
    a: Replica, b: Replica, way: ProxyThread, prompt: str
) -> None:
    reconnected(a, b)
    oracle = a.ask(prompt, tokens=8).said[0]
    way.faults.hold_after = bytes_of(20.5)
    killer = way.when_held(agent_of(b).kill)
    try:
        with load_of(b) as load:
            answer = b.ask(prompt, tokens=8, sources=["a"])
    finally:
        killer.join()
        agent_of(b).start()
    assert answer.said[0] == oracle
    assert load.reasons == {"disconnected": 1}
    way.mend()
    reconnected(a, b)


def test_the_replicas_own_agent_falls_silent_while_it_loads(
    a: Replica, b: Replica, way: ProxyThread, prompt: str
) -> None:
    """A stopped process: its sockets stay open and nothing comes."""
    reconnected(a, b)
    computed, oracle = cold(a, prompt)
    way.faults.hold_after = bytes_of(20.5)
    stopper = way.when_held(agent_of(b).pause)
    try:
        with load_of(b) as load:
            answer = b.ask(prompt, tokens=8, sources=["a"], limits=LIMITS)
    finally:
        stopper.join()
        agent_of(b).resume()
    assert answer.said[0] == oracle
    assert load.loaded <= 20
    assert in_time(answer, computed)
    way.mend()
    reconnected(a, b)


@pytest.mark.parametrize("stopped", [True, False])
def test_home_falls_silent(a: Replica, b: Replica, way: ProxyThread, prompt: str, stopped: bool) -> None:
    """Its process stops, or its connections are there for one end only. What landed before is kept; the rest
    is computed once nothing has come for a while."""
    reconnected(a, b)
    computed, oracle = cold(a, prompt)
    way.faults.hold_after = bytes_of(20.5)
    stopper = way.when_held(agent_of(a).pause if stopped else lambda: None)
    try:
        with load_of(b) as load:
            answer = b.ask(prompt, tokens=8, sources=["a"], limits=LIMITS)
    finally:
        stopper.join()
        agent_of(a).resume()
    assert answer.said[0] == oracle
    assert 0 < load.loaded <= 20
    assert load.loaded + load.missing == FULL
    assert load.reasons == {"stall": 1}
    assert in_time(answer, computed)


def test_home_is_slow(a: Replica, b: Replica, way: ProxyThread, prompt: str) -> None:
    """Something comes all the time, and never enough: the deadline ends it, and what landed is kept."""
    reconnected(a, b)
    computed, oracle = cold(a, prompt)
    way.faults.drip_after = bytes_of(20.5)
    with load_of(b) as load:
        answer = b.ask(prompt, tokens=8, sources=["a"], limits=LIMITS)
    assert answer.said[0] == oracle
    assert 0 < load.loaded <= 20
    assert load.loaded + load.missing == FULL
    assert load.reasons == {"deadline": 1}
    assert in_time(answer, computed)


@pytest.mark.parametrize("where", [0.0, 20.5])
def test_a_bit_that_flips_on_the_way_is_never_part_of_an_answer(
    a: Replica, b: Replica, way: ProxyThread, prompt: str, where: float
) -> None:
    """In the middle of a block; and in whatever comes next, which ends a connection that is made anew, maybe
    before the prompt is asked for."""
    reconnected(a, b)
    oracle = a.ask(prompt, tokens=8).said[0]
    way.faults.flip_after = bytes_of(where) + 40
    with load_of(b) as load:
        answer = b.ask(prompt, tokens=8, sources=["a"])
    assert way.faults.flip_after is None, "nothing was flipped"
    assert answer.said[0] == oracle
    if where:
        assert 0 < load.loaded <= where
        assert load.loaded + load.missing == FULL


def test_a_damaged_block_is_a_miss(a: Replica, b: Replica, prompt: str) -> None:
    """A byte is flipped in every block that `a`'s agent keeps, behind its back."""
    reconnected(a, b)
    a.ask(prompt)
    oracle = a.ask(prompt, tokens=8)
    damage(a)
    before = b.metrics()
    answer = b.ask(prompt, tokens=8, sources=["a"])
    assert answer.said[0] == oracle.said[0]
    after = b.metrics()
    assert after.loaded_tokens() - before.loaded_tokens() == 0, after.about()
    agent_of(a).kill()
    agent_of(a).start()


def test_another_tenants_block_is_absent(a: Replica, b: Replica, prompt: str) -> None:
    reconnected(a, b)
    a.ask(prompt, tenant="one")
    before = b.metrics().loaded_tokens()
    answer = b.ask(prompt, tenant="two", sources=["a"], tokens=8)
    assert answer.status == 200
    assert answer.cached == 0
    assert b.metrics().loaded_tokens() == before
    assert b.ask(prompt, tenant="one", sources=["a"]).cached > 0


def test_a_hint_for_one_tenant_on_a_request_of_another_gets_nothing(
    a: Replica, b: Replica, prompt: str
) -> None:
    reconnected(a, b)
    a.ask(prompt, tenant="one")
    answer = b.ask(prompt, tenant="two", sources=["a"], hint={"tenant": "one"})
    assert answer.cached == 0


@pytest.mark.parametrize(
    "tampering",
    [
        {"hint": {"deadline_ms": 99_999}},
        {"hint": {"sources": ["a", "b"]}},
        {"hint": {"sig": "0" * 64}},
        {"hint": {"exp": 1}},
        {"hint": {"v": 2}},
        {"hint": {"more": "x"}},
        {"hint": {"session": None}},
        {"secret": "another secret, long enough to be taken for one"},
    ],
    ids=str,
)
def test_a_hint_that_was_altered_is_not_followed(
    a: Replica, b: Replica, prompt: str, tampering: dict[str, Any]
) -> None:
    reconnected(a, b)
    oracle = a.ask(prompt[:1000], tokens=8).said[0]
    answer = b.ask(prompt[:1000], tokens=8, sources=["a"], **tampering)
    assert answer.said[0] == oracle
    assert answer.cached == 0


@pytest.mark.parametrize(
    "odd", [None, 3, [], {"homing": None}, {"homing": {"v": 1}}, {"homing": {"x": "y" * 9999}}]
)
def test_odd_transfer_parameters_break_nothing(b: Replica, odd: Any) -> None:
    answer = b.ask("say something " * 20, kv_transfer_params=odd)
    assert answer.status in (200, 400, 422)


def test_an_agent_with_another_secret_gets_nothing(a: Replica, b: Replica, prompt: str) -> None:
    oracle = a.ask(prompt, tokens=8).said[0]
    agent = agent_of(b)
    secret = agent.secret
    agent.stop()
    agent.secret = "another secret, long enough to be taken for one"
    agent.start()
    try:
        reconnected(b)
        answer = b.ask(prompt, tokens=8, sources=["a"], secret=agent.secret)
        assert answer.said[0] == oracle
        assert answer.cached == 0
    finally:
        agent.stop()
        agent.secret = secret
        agent.start()
    reconnected(a, b)


@pytest.mark.parametrize("landed", [0, 1, 20, 100])
def test_a_request_that_is_aborted_while_it_loads_gives_its_blocks_back(
    a: Replica, b: Replica, way: ProxyThread, prompt: str, landed: int
) -> None:
    reconnected(a, b)
    oracle = a.ask(prompt, tokens=8).said[0]
    way.faults.hold_after = bytes_of(landed + 0.5)
    leaving = b.begin(prompt, tokens=200, sources=["a"], limits=PATIENT)
    way.await_hold()
    b.await_busy()
    leaving.close()
    # Long before the load's own limits, and while its source is silent.
    b.await_idle(30)
    way.mend()
    assert b.ask(prompt, tokens=8).said[0] == oracle


def test_a_hundred_requests_for_one_prefix_fetch_it_once(a: Replica, b: Replica, prompt: str) -> None:
    reconnected(a, b)
    a.ask(prompt)
    oracle = a.ask(prompt, tokens=4).said
    b.forget_cache()
    before = agent_of(b).figure("pulled_bytes_total")
    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: b.ask(prompt, tokens=4, sources=["a"]), range(100)))
    assert {answer.said[0] for answer in answers} == {oracle[0]}
    assert agent_of(b).figure("pulled_bytes_total") - before == bytes_of(FULL)


def test_more_prompts_than_fit_are_pulled_and_computed_in_turn(a: Replica, b: Replica) -> None:
    """Eight prompts of 110 blocks in an engine of 600: loads wait for room, some are preempted."""
    reconnected(a, b)
    chance = random.Random("pressure")
    prompts = [text(chance, LENGTH) for _ in range(8)]
    oracles = []
    for one in prompts:
        a.ask(one)
        oracles.append(a.ask(one, tokens=100).said[0])
    b.forget_cache()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: b.ask(one, tokens=100, sources=["a"]), prompts))
    for one, oracle, answer in zip(prompts, oracles, answers, strict=True):
        assert answer.status == 200
        if answer.said[0] != oracle:
            assert_greedy(a, one, answer)


def test_others_are_preempted_while_a_request_loads(
    a: Replica, b: Replica, way: ProxyThread, prompt: str
) -> None:
    """A load comes drop by drop and keeps its 110 of 599 blocks, while twelve others are loaded from the
    replica's own agent and grow, until there is no room and the engine preempts. Then the rest comes. All
    answer as if they had been alone."""
    # With room in its agent's arena: what one that was preempted finds there may otherwise be given up for
    # what others save, before it is loaded.
    agent_of(b).kill()
    agent_of(b).start()
    reconnected(a, b)
    oracle = a.ask(prompt, tokens=8).said[0]
    chance = random.Random("growing")
    growing = [text(chance, 39 * BLOCK) for _ in range(12)]
    for one in growing:
        b.ask(one)
    b.forget_cache()
    before = b.metrics()
    # Enough that neither end takes the other for gone, and all takes longer than a load may.
    way.faults.drip = (1 << 16, 1.0)
    way.faults.drip_after = bytes_of(20.5)
    with load_of(b) as load, concurrent.futures.ThreadPoolExecutor(1 + len(growing)) as pool:
        loading = pool.submit(b.ask, prompt, tokens=8, sources=["a"], limits=PATIENT)
        assert way.faults.dripping.wait(REQUEST_S)
        # With 40 blocks each they fit, and with the second one that each of them fills they do not. They go
        # on for six more: on a busy machine the first of them is far ahead of the last.
        asked = [pool.submit(b.ask, one, tokens=8 * BLOCK, sources=[]) for one in growing]
        try:
            then = await_preemption(b, before, asked)
        finally:
            way.go_on()
        # Of the loads that were offered one had not ended: the one that drips.
        offered = then.sum(OFFERS, outcome="offered") - before.sum(OFFERS, outcome="offered")
        assert offered > then.sum(LOADS) - before.sum(LOADS), then.about()
        assert loading.result().said[0] == oracle
        for one, answer in zip(growing, asked, strict=True):
            assert answer.result().status == 200
            assert_greedy(a, one, answer.result())
    assert set(load.reasons) == {"done"}
    assert load.loaded >= FULL
    # Told once those that were preempted go on.
    assert b.metrics().sum(PREEMPTIONS) > before.sum(PREEMPTIONS)


def await_preemption(
    replica: Replica, since: Metrics, asked: Sequence[concurrent.futures.Future[Answer]]
) -> Metrics:
    """Until the engine has preempted one of these, which it was given at once; its figures at that moment.

    Its own count of preemptions grows only when the preempted one goes on, for which there has to be room.
    Until then fewer run than were begun, while none is answered; whoever looks too late sees the count.
    """
    patience = Patience(LIMIT_S)
    while True:
        # Before the figures: those of one that is answered later may say more.
        answered = sum(one.done() for one in asked)
        found = replica.metrics()
        is_loaded = found.sum(LOADS) - since.sum(LOADS) >= len(asked)
        is_begun = is_loaded and found.sum(GENERATED) - since.sum(GENERATED) >= len(asked) * BLOCK // 2
        is_short = found.sum(RUNNING) < len(asked) and not any(one.done() for one in asked)
        if (is_begun and is_short) or found.sum(PREEMPTIONS) > since.sum(PREEMPTIONS):
            return found
        is_over = answered == len(asked) or patience.is_over
        assert not is_over, f"nothing is preempted:\n{found.about('vllm:')}"
        # To tell costs the replica as much as some steps.
        time.sleep(0.5)


def assert_greedy(replica: Replica, prompt: str, answer: Answer) -> None:
    """Each token of the answer is the likeliest one after those before it, for a replica that computes all of
    them anew. Batched with others a token's probabilities differ in the last bits: a near tie may turn, and
    what follows then goes on from there."""
    said = answer.said[0]
    found = replica.ask(prompt + said, echo=True).said[1]
    for at in range(len(prompt), len(prompt) + len(said)):
        likeliest = max(found["top_logprobs"][at].values())
        assert found["token_logprobs"][at] > likeliest - 1e-2, f"{at - len(prompt)} of {said!r}"


def cold(replica: Replica, prompt: str) -> tuple[float, str]:
    """How long the replica takes to compute a prompt, and what it says to it."""
    answer = replica.ask(prompt, tokens=8)
    assert answer.cached == 0
    return answer.seconds, answer.said[0]


def in_time(answer: Answer, computed_s: float) -> bool:
    """No later than the load's deadline and a recompute; this one may hit a busier moment of the machine."""
    return answer.seconds < LIMITS["deadline_ms"] / 1000 + 4 * computed_s


def reconnected(*replicas: Replica) -> None:
    """Until each engine has its agent, and each agent its peers: an agent that was started anew takes a while
    to be found, and an engine only looks while it has something to do."""
    patience = Patience(PATIENCE_S)
    chance = random.Random(time.monotonic())
    while not patience.is_over:
        for replica in replicas:
            replica.ask(text(chance, 70))
        time.sleep(0.05)
        if all(replica.metrics().sum("vllm:homing_agent_connected") for replica in replicas) and pulls(
            replicas
        ):
            return
    figures = "\n".join(
        f"{replica.metrics().about()}\n{agent_of(replica).metrics().about('homing_kv_')}"
        for replica in replicas
    )
    raise AssertionError(f"the agents do not find each other:\n{figures}")


def pulls(replicas: tuple[Replica, ...]) -> bool:
    """Whether the last of them can pull from the first."""
    if len(replicas) < 2:
        return True
    chance = random.Random(time.monotonic())
    probe = text(chance, 300)
    replicas[0].ask(probe, tokens=2)
    return replicas[-1].ask(probe, sources=[replicas[0].name]).cached > 0


def damage(replica: Replica) -> None:
    """Flip a byte in the middle of every 64 KiB of the agent's blocks."""
    (arena,) = agent_of(replica).arena_folder.glob(f"{replica.name}*")
    size = arena.stat().st_size
    with arena.open("r+b") as file:
        for at in range(1 << 20, size, 1 << 16):
            file.seek(at + 100)
            byte = file.read(1)
            file.seek(at + 100)
            file.write(bytes([byte[0] ^ 0xFF]))
