"""What an engine knows of a replica, for who shows it."""

from typing import Any

from router.base.ids import ReplicaId
from router.core.fleet import ReplicaStatus


def status(name: ReplicaId, **given: Any) -> ReplicaStatus:
    """A healthy one with figures that can be told from one another."""
    values: dict[str, Any] = {
        "url": f"http://{name}:8000",
        "health": "healthy",
        "why": "",
        "draining": False,
        "models": ("m",),
        "in_flight": 3,
        "pending_tokens": 40,
        "working_set_tokens": 500,
        "sessions": 2,
        "index_segments": 60,
        "report": None,
        "report_age_s": 0.5 if given.get("report") is not None else None,
        "capacity_tokens": None,
        "recent_failures": 0.25,
        "restarts": 1,
        "trust": 0.875,
        "held": 5,
        "free_tokens": 300_000,
        "horizon_tokens": 8192,
    }
    return ReplicaStatus(name, **(values | given))
