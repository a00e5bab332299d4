"""What the control plane asks of the engine, and no more. `core.engine.Engine` fits both."""

from collections.abc import Sequence
from typing import Protocol

from router.base.ids import ReplicaId, SessionKey
from router.core.fleet import ModelCard, ReplicaSpec, ReplicaStatus, Report, Resident
from router.core.queue import Held
from router.core.session import Session


class ProbedFleet(Protocol):
    """The side that probing writes to. A replica that has since left is ignored."""

    def replica_ids(self) -> tuple[ReplicaId, ...]: ...

    def spec(self, replica: ReplicaId) -> ReplicaSpec:
        """Raises `KeyError` if the replica is unknown."""
        ...

    def probe_passed(self, replica: ReplicaId, now: float) -> None: ...

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None: ...

    def report(self, replica: ReplicaId, report: Report, now: float) -> None: ...

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], now: float) -> None: ...


class AdministeredFleet(Protocol):
    """The side that operators read and steer."""

    def replica_ids(self) -> tuple[ReplicaId, ...]: ...

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]: ...

    def sessions(self, limit: int) -> Sequence[Session]:
        """Newest first."""
        ...

    def sessions_of(self, key: SessionKey) -> Sequence[Session]:
        """Those that a key names, for one model or for all."""
        ...

    def session_count(self) -> int: ...

    def whereabouts(self, key: SessionKey) -> Sequence[Resident]:
        """What lies of a session where; the most first."""
        ...

    def held_turns(self, limit: int) -> Sequence[Held]:
        """The longest waiting first."""
        ...

    def drain(self, replica: ReplicaId, on: bool) -> None:
        """Raises `KeyError` if the replica is unknown."""
        ...

    def end_session(self, key: SessionKey) -> Sequence[Session]:
        """What was known of it, for each model; nothing if there was no such session."""
        ...
