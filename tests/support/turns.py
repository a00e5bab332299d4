"""Engines whose replicas are all well, and turns for them in a few words."""

from random import Random

import pytest

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.hashing import hash64
from router.core.model import Models
from router.core.observe import Ended, HealthChange, Outcome, Usage
from router.core.plan import Plan
from router.core.request import Chain, Turn
from router.core.residency import Residency
from router.core.strategies.priced import Priced

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def specs(*names: str) -> list[ReplicaSpec]:
    return [ReplicaSpec(ReplicaId(name), f"http://{name}:8000") for name in names]


def engine(
    *names: str,
    plan: Plan | None = None,
    observer: object = None,
    seed: int = 1,
    models: Models | None = None,
) -> Engine:
    """An engine whose replicas are all well."""
    plans = [plan or Plan(name="home", strategy=Priced())]
    made = Engine(plans, rng=Random(seed), observer=observer, models=models)  # type: ignore[arg-type]
    made.set_replicas(specs(*names), 0.0)
    for name in names:
        made.probe_passed(ReplicaId(name), 0.0)
    return made


def chain(*segments: int, size: int = 4000) -> Chain:
    return Chain(segments, tuple(size * (at + 1) for at in range(len(segments))), 1)


def turn(
    session: str = "s",
    *segments: int,
    model: str = "m",
    tenant: TenantId = OPEN_TENANT,
    stream: bool = True,
    response_id: str | None = None,
) -> Turn:
    return Turn(
        "/v1/chat/completions",
        model,
        tenant,
        SessionKey(session) if session else None,
        "x-session-id" if session else "",
        chain(*(segments or (hash64(session.encode()),))),
        response_id,
        stream,
    )


def play(
    of: Engine,
    request: Turn,
    now: float,
    *,
    prompt: int = 1000,
    reply: int = 20,
    cached: int | None = None,
    failed: tuple[ReplicaId, ...] = (),
) -> Decision:
    """A turn that goes well."""
    ticket = of.admit(request, now, failed=failed)
    ticket.first_byte(now + 0.1)
    ticket.end(Outcome.COMPLETED, now + 0.2, Usage(prompt, reply, cached))
    return ticket.decision


def refusal(of: Engine, request: Turn, now: float = 0.0, **more: object) -> Refused:
    with pytest.raises(Refused) as caught:
        of.admit(request, now, **more)  # type: ignore[arg-type]
    return caught.value


def long(session: str, kilobytes: int = 40) -> Turn:
    """10,000 tokens unless said otherwise: above the horizon."""
    return turn(session, *(hash64(f"{session}{at}".encode()) for at in range(kilobytes // 4)))


def resident(session: str, blocks: int) -> Residency:
    """What events say of a replica that holds so many blocks of a session."""
    made = Residency()
    made.stored(list(range(1, blocks + 1)), None, 16, SessionKey(session))
    return made


def cached(decision: Decision) -> dict[str, int]:
    """What of the prompt each candidate was believed to hold."""
    return {candidate.replica: candidate.cached_tokens for candidate in decision.candidates}


class Recorder:
    """An observer that keeps what it is told, but for waits and prefills."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, object]] = []

    def on_decision(self, of: Turn, decision: Decision) -> None:
        self.facts.append(("decision", decision.kind))

    def on_refused(self, of: Turn, kind: ErrorKind, message: str, now: float) -> None:
        self.facts.append(("refused", kind))

    def on_ended(self, ended: Ended) -> None:
        self.facts.append(("ended", (ended.outcome, ended.ttft_s)))

    def on_health(self, change: HealthChange) -> None:
        self.facts.append(("health", (change.before, change.after)))

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        self.facts.append(("restarted", replica))

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None:
        self.facts.append(("moved", (before, after)))
