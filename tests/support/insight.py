"""Stands in for telemetry behind the admin port, where a test is about something else."""

from collections.abc import Mapping
from typing import Any

from router.base.ids import ReplicaId
from router.controlplane.insight import InsightSources


class NoHistory:
    """Nothing has happened yet, but for what a test says of a replica."""

    def __init__(self, replicas: Mapping[ReplicaId, Mapping[str, object]] | None = None) -> None:
        self._replicas = replicas or {}

    def lately(self) -> dict[str, object]:
        return {"turns": 0}

    def replicas(self) -> Mapping[ReplicaId, Mapping[str, object]]:
        return self._replicas

    def series(self) -> dict[str, object]:
        return {"turns": []}


def insight(**given: Any) -> InsightSources:
    """Sources that know nothing, but for those given."""
    nothing: dict[str, Any] = {
        "decisions": lambda limit, **_: [],
        "decision": lambda serial: None,
        "history": NoHistory(),
        "timeline": lambda key: None,
        "moves": lambda limit: {"flows": [], "moves": []},
        "breaks": lambda limit, now: {"turns": 0, "totals": [], "latest": []},
        "session": lambda key, now: {},
    }
    return InsightSources(**(nothing | given))
