"""Whatever happens to a fleet that parts prefill from decode: each session ends, and nothing is left."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.plan import PairRules, Plan, QueueRules
from router.core.strategies.priced import Priced
from router.simulator.replay.events import FleetEvent
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.trace import Trace, TraceSession, TraceTurn
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

BLOCK = 64


def session(chance: Random, number: int) -> TraceSession:
    """Turns that go on from one another, or from somewhere in the midst."""
    turns = []
    blocks = 0
    for turn in range(chance.randint(1, 4)):
        kept = chance.choice([blocks, blocks, blocks, chance.randint(0, blocks)])
        new = chance.randint(1, 12)
        fresh = tuple(number << 32 | turn << 16 | at for at in range(1, new + 1))
        blocks = kept + new
        tokens = blocks * BLOCK + chance.randrange(BLOCK)
        answer, think_s = chance.choice([1, 5, 30, 130]), chance.choice([0.0, 0.5, 7.0, 12.3])
        turns.append(TraceTurn(float(turn), tokens, answer, think_s, kept, fresh))
    return TraceSession(
        f"s{number}", chance.choice([0.0, 1.0, 2.5, chance.uniform(0, 15)]), tuple(turns), 0, ()
    )


def events(chance: Random, replicas: int, prefills: int) -> list[FleetEvent]:
    """Some that can happen, one after the other."""
    living = [f"r{at}" for at in range(replicas)] + [f"p{at}" for at in range(prefills)]
    dead: list[str] = []
    found = []
    now = 0.0
    for number in range(chance.randint(0, 8)):
        now += chance.choice([0.0, 0.5, 1.0, chance.uniform(0.1, 6)])
        what = chance.choice(["kill", "kill", "start", "start", "add", "drain", "undrain"])
        if what == "add":
            name = f"{chance.choice('rp')}{9 + number}"
            living.append(name)
        elif what == "start" and dead:
            name = dead.pop(chance.randrange(len(dead)))
            living.append(name)
        elif what != "start" and living:
            name = chance.choice(living)
            if what == "kill":
                living.remove(name)
                dead.append(name)
        else:
            continue
        found.append(FleetEvent(now, what, name))  # type: ignore[arg-type] # one of those above
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_every_session_ends_and_nothing_is_left_over(seed: int) -> None:
    chance = Random(seed)
    replicas, prefills = chance.randint(1, 3), chance.randint(1, 3)
    sessions = tuple([session(chance, number) for number in range(chance.randint(1, 8))])
    trace = Trace("made", BLOCK, sessions, timed=True)
    plan = Plan(
        name="tried",
        strategy=Priced(),
        prefill_tokens_per_s=1000.0,
        queue=chance.choice([QueueRules(), None]),
        pair=PairRules(
            whole_streams=chance.random() < 0.3,
            deadline_s=chance.choice([0.1, 1.0, 10.0]),
            least_tokens=chance.choice([BLOCK, 256]),
        ),
    )
    held = ReplicaSettings(
        block_size=BLOCK,
        kv_blocks=chance.choice([1001, 70, 120]),
        host_kv_blocks=chance.choice([0, 0, 20, 200]),
        prefill_tps=1000.0,
        kv_bytes_per_token=1000,
        host_gbps=1e3,
        max_model_len=10**9,
        two_way=chance.random() < 0.85,
        streams_offer=chance.random() < 0.6,
        decode_pin_s=chance.choice([5.0, 60.0, 480.0]),
    )
    workload = choose(trace, Selection(), held.context_tokens)
    replay = FleetReplay(
        plan,
        workload,
        held,
        replicas=replicas,
        prefills=prefills,
        seed=0,
        pull_gbps=chance.choice([0.00768, 0.0768, 0.0005]),
        events=events(chance, replicas, prefills),
    )
    measured = replay.run(until_s=20_000.0)
    ended = sum(1 for _, script in workload.starts if script.steps)
    assert len(measured.session_s) + measured.refused == ended
    assert not replay._agenda, "it came to its end by itself"
    assert replay._engine.in_flight() == 0
    assert {one.model.cache.used for one in replay._replicas.values()} == {0}
    pairs = replay._pairs
    assert pairs is not None
    assert (pairs._prompts, pairs._fetches, pairs._kept) == ({}, {}, {})
    for member in replay._engine._members.ordered:
        assert (member.kv_tokens, member.pending_tokens) == (0, 0)
