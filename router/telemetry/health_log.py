"""Writes to the log when a replica's health changes or its process is another one. Says nothing of turns."""
# ruff: noqa: ARG002 - signatures are the protocol's

import logging

from router.base.ids import ReplicaId
from router.core.health import State
from router.core.observe import HealthChange
from router.core.observer import Silent

_log = logging.getLogger(__name__)


class HealthLog(Silent):
    """An `Observer` of replicas. A replica that goes down or restarts is a warning, the rest is news."""

    __slots__ = ()

    def on_health(self, change: HealthChange) -> None:
        level = logging.WARNING if change.after == State.DOWN else logging.INFO
        why = f" ({change.why})" if change.why else ""
        _log.log(level, "replica %s: %s → %s%s", change.replica, change.before, change.after, why)

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        _log.warning("replica %s: restarted, so its cache is cold", replica)
