"""Candidates with harmless figures, so that a test names what it is about."""

from typing import Any

from router.base.ids import ReplicaId
from router.core.decide import Candidate


def candidate(name: str, **given: Any) -> Candidate:
    values: dict[str, Any] = {
        "cached_tokens": 0,
        "in_flight": 0,
        "pending_tokens": 0,
        "working_set_tokens": 0,
        "capacity_tokens": None,
        "foreign": None,
        "recent_failures": 0.0,
        "placed_at": 0.0,
        "over": None,
    }
    return Candidate(ReplicaId(name), **(values | given))
