"""The traps that routers fell into, replayed in virtual time under the default policy. Each bound is what the
worst of three seeds gives, with little to spare."""

from collections import Counter
from itertools import count
from random import Random

import pytest

from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.request import Turn
from router.core.ticket import Ticket
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.events import parse_event
from router.simulator.replay.figures import Measured
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.trace import Trace, TraceSession, TraceTurn
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

BLOCK = 64
SEEDS = [0, 1, 2]


class Writer:
    """Writes sessions whose blocks are no other's, but for what they share at their beginning."""

    def __init__(self) -> None:
        self._blocks = count(1)

    def session(
        self, name: str, *turns: tuple[int, int, int, float], at: float, lead: int = 0
    ) -> TraceSession:
        """Turns as (prompt tokens, kept tokens, answer's tokens, thinking before). `lead`: tokens shared."""
        written = []
        for tokens, kept, output, think in turns:
            shared = range(10**9, 10**9 + (0 if kept else lead // BLOCK))
            own = tokens // BLOCK - kept // BLOCK - len(shared)
            fresh = (*shared, *[next(self._blocks) for _ in range(own)])
            written.append(TraceTurn(at, tokens, output, think, kept // BLOCK, fresh))
        return TraceSession(name, at, tuple(written), lead // BLOCK)

    def growing(self, name: str, turns: int, rng: Random, *, at: float, first: int = 8_000) -> TraceSession:
        """A session whose prompt grows by some hundred tokens a turn, at a person's pace."""
        steps, tokens, kept = [], first, 0
        for _ in range(turns):
            steps.append((tokens, kept, rng.randrange(20, 200), rng.uniform(5.0, 40.0)))
            kept, tokens = tokens, tokens + rng.randrange(200, 1500)
        return self.session(name, *steps, at=at)


class Placed:
    """Where turns went: their replicas, by session and in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_session: dict[SessionKey, list[ReplicaId]] = {}
        admit = Engine.admit

        def noted(engine: Engine, turn: Turn, now: float, **more: object) -> Ticket:
            ticket = admit(engine, turn, now, **more)  # type: ignore[arg-type]
            decision: Decision = ticket.decision
            assert turn.session is not None
            self.by_session.setdefault(turn.session, []).append(decision.replica)
            return ticket

        monkeypatch.setattr(Engine, "admit", noted)

    def homes(self) -> list[int]:
        """How many sessions each replica was given at their first turn, the fewest first."""
        return sorted(Counter(went[0] for went in self.by_session.values()).values())


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    return Placed(monkeypatch)


def play(*sessions: TraceSession, replicas: int, seed: int, events: tuple[str, ...] = ()) -> Measured:
    settings = ReplicaSettings(
        block_size=BLOCK,
        kv_blocks=600_000 // BLOCK + 1,
        host_kv_blocks=2_400_000 // BLOCK,
        prefill_tps=12_000.0,
        decode_tps=50.0,
        max_model_len=600_000,
    )
    workload = choose(
        Trace("made", BLOCK, sessions, timed=True), Selection(seed=seed), settings.context_tokens
    )
    plan = build_plan(load_policy("home").value)
    happening = [parse_event(text) for text in events]
    measured = FleetReplay(plan, workload, settings, replicas=replicas, seed=seed, events=happening).run()
    assert measured.refused == 0
    return measured


@pytest.mark.parametrize("seed", SEEDS)
def test_sessions_that_meet_an_idle_fleet_at_every_pick_spread(placed: Placed, seed: int) -> None:
    write = Writer()
    play(
        *[write.session(f"s{n}", (8_000, 0, 20, 0.0), at=30.0 * n) for n in range(40)], replicas=4, seed=seed
    )
    homes = placed.homes()
    assert len(homes) == 4
    assert homes[-1] <= 15


@pytest.mark.parametrize("seed", SEEDS)
def test_a_shared_system_prompt_gathers_nobody(placed: Placed, seed: int) -> None:
    write = Writer()
    sessions = [write.session(f"s{n}", (24_000, 0, 20, 0.0), at=10.0 * n, lead=20_480) for n in range(40)]
    measured = play(*sessions, replicas=4, seed=seed)
    homes = placed.homes()
    assert len(homes) == 4
    assert homes[-1] <= 15
    # Each replica computes what they share once.
    assert sum(measured.prefilled) == pytest.approx(4 * 20_480 + 40 * 3_520, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_between_two_reports_spreads(placed: Placed, seed: int) -> None:
    write = Writer()
    sessions = [write.session(f"s{n}", (8_000, 0, 20, 0.0), at=10.25 + 0.01 * n) for n in range(40)]
    measured = play(*sessions, replicas=4, seed=seed)
    assert placed.homes()[-1] <= 13
    # Ten prompts of two thirds of a second each, one after the other.
    assert max(measured.ttft_s) <= 8.7


@pytest.mark.parametrize("seed", SEEDS)
def test_one_overloaded_replica_leaves_the_affinity_of_the_rest_alone(placed: Placed, seed: int) -> None:
    write, rng = Writer(), Random(seed)
    others = [write.growing(f"s{n}", 12, rng, at=0.5 * n) for n in range(32)]
    # One session computes 200,000 tokens again and again.
    heavy = write.session("heavy", *[(200_000, 0, 20, 1.0)] * 12, at=20.0)
    calm = play(*others, replicas=4, seed=seed)
    hot = play(*others, heavy, replicas=4, seed=seed)
    assert calm.moves == 0
    # What the others compute more, of their tokens: those who would wait for 17 seconds compute elsewhere.
    lost = (sum(hot.prefilled) - 12 * 200_000 - sum(calm.prefilled)) / calm.prompt_tokens
    assert lost <= 0.085
    *rest, first_of_heavy = sorted(hot.ttft_s)[:-11]
    assert first_of_heavy >= 200_000 / 12_000 - 0.01
    assert rest[-1] <= 2.1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_that_is_added_moves_no_session_that_sits_well(placed: Placed, seed: int) -> None:
    write, rng = Writer(), Random(seed)
    before = [write.growing(f"s{n}", 16, rng, at=2.0 * n) for n in range(24)]
    after = [write.growing(f"t{n}", 8, rng, at=150.0 + 2.0 * n) for n in range(24)]
    measured = play(*before, *after, replicas=3, seed=seed, events=("add:r3@2m",))
    assert measured.moves == 0
    assert all(len(set(went)) == 1 for went in placed.by_session.values())
    new = [went[0] for went in placed.by_session.values() if len(went) == 8]
    # A fourth of them, and as many as the working set of the others asks for.
    assert new.count(ReplicaId("r3")) >= 5
