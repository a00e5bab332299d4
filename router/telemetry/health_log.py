"""Writes to the log when a replica's health changes or its process is another one. Says nothing of turns."""
# ruff: noqa: ARG002 - signatures are the protocol's

import logging

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.health import State
from router.core.observe import Ended, HealthChange
from router.core.request import Turn

_log = logging.getLogger(__name__)


class HealthLog:
    """An `Observer` of replicas. A replica that goes down or restarts is a warning, the rest is news."""

    __slots__ = ()

    def on_health(self, change: HealthChange) -> None:
        level = logging.WARNING if change.after == State.DOWN else logging.INFO
        why = f" ({change.why})" if change.why else ""
        _log.log(level, "replica %s: %s → %s%s", change.replica, change.before, change.after, why)

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        _log.warning("replica %s: restarted, so its cache is cold", replica)

    def on_decision(self, turn: Turn, decision: Decision) -> None: ...

    def on_refused(self, turn: Turn, kind: ErrorKind, message: str, now: float) -> None: ...

    def on_ended(self, ended: Ended) -> None: ...

    def on_moved(self, session: SessionKey, before: ReplicaId, after: ReplicaId, now: float) -> None: ...
