from collections.abc import Callable

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Candidate, Decision, Kind
from router.core.observe import Ended, Outcome, Usage
from router.core.request import EMPTY_CHAIN, Turn


def candidate(replica: str, cached_tokens: int = 0) -> Candidate:
    return Candidate(ReplicaId(replica), cached_tokens, 1, 20, 300, None, 0.5, 0.0, 7.0, None)


def make_turn(session: str | None = "k") -> Turn:
    key = SessionKey(session) if session is not None else None
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, key, "x-session-id", EMPTY_CHAIN)


def make_decision(
    replica: str = "a",
    kind: Kind = Kind.HOME,
    *,
    policy: str = "home",
    cached_tokens: int = 100,
    attempt: int = 0,
    at: float = 50.0,
    candidates: int = 2,
    prices: tuple[float, ...] | None = None,
) -> Decision:
    return Decision(
        ReplicaId(replica),
        kind,
        "owner on the ring",
        policy,
        tuple(candidate("abcdefgh"[i % 8], i) for i in range(candidates)),
        prices,
        ReplicaId("a"),
        120,
        cached_tokens,
        attempt,
        at,
    )


def make_ended(
    decision: Decision,
    outcome: Outcome = Outcome.COMPLETED,
    *,
    usage: Usage | None = None,
    ttft_s: float | None = None,
    duration_s: float = 1.0,
) -> Ended:
    return Ended(make_turn(), decision, outcome, usage, ttft_s, duration_s, decision.at + duration_s)


@pytest.fixture
def turn() -> Turn:
    return make_turn()


@pytest.fixture
def decided() -> Callable[..., Decision]:
    return make_decision


@pytest.fixture
def ended() -> Callable[..., Ended]:
    return make_ended
