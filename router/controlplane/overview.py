"""The state of the whole at a glance: what the fleet adds up to, and what somebody should look at.

Pure: told what others know, answers with plain fields.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from router.base.ids import ReplicaId
from router.controlplane.discovery import SourceStatus
from router.controlplane.kv_feed import FeedStatus
from router.controlplane.reload import Outcome, Reload
from router.core.estimate.pulls import Breaker
from router.core.fleet import ReplicaStatus, Role
from router.core.health import State

READY: Final = frozenset({State.HEALTHY, State.PROBATION})

# Of its KV; beyond, a replica evicts what sessions will want again.
_FULL: Final = 0.98

# Of turns, halved every ten seconds.
_FAILING: Final = 1.0


NOT_LISTENING: Final = "the data port does not listen yet"


class Notice(NamedTuple):
    """Something that is not as it should be, or that somebody did and may have forgotten."""

    level: Literal["fault", "warning", "note"]
    """`fault`: turns are refused or settings are not in force. `warning`: something is out of use. `note`:
    meant, or passing."""
    about: str
    """`replicas`, `policy`, `discovery`, `kv-events`, `kv-agents` or `router`: where more is to be found."""
    name: str
    """Of the replica, source or agent; "" where it is the whole."""
    text: str


def why_not_ready(status: ReplicaStatus) -> str:
    """Why a replica takes no turns, in words."""
    if status.draining:
        return f"{status.id} is {'leaving the fleet' if status.leaving else 'draining'}"
    if status.role is Role.PREFILL and status.health in READY:
        return f"{status.id} only prefills for others"
    return f"{status.id} is {status.health}" + (f": {status.why}" if status.why else "")


def is_ready(statuses: Iterable[ReplicaStatus]) -> bool:
    """Whether any replica takes turns."""
    return any(
        status.health in READY and not status.draining and status.role is not Role.PREFILL
        for status in statuses
    )


def fleet_totals(statuses: Sequence[ReplicaStatus]) -> dict[str, object]:
    """What the replicas add up to. KV figures are of those that told theirs; `None` where none did."""
    usages = [
        status.report.kv_usage
        for status in statuses
        if status.report is not None and status.report.kv_usage is not None
    ]
    capacities = [status.capacity_tokens for status in statuses if status.capacity_tokens is not None]
    return {
        "replicas": len(statuses),
        "health": {state.value: sum(status.health == state for status in statuses) for state in State},
        "draining": sum(status.draining for status in statuses),
        "in_flight": sum(status.in_flight for status in statuses),
        "pending_tokens": sum(status.pending_tokens for status in statuses),
        "sessions": sum(status.sessions for status in statuses),
        "working_set_tokens": sum(status.working_set_tokens for status in statuses),
        "capacity_tokens": sum(capacities) if capacities else None,
        "kv_usage": sum(usages) / len(usages) if usages else None,
    }


def notices(
    statuses: Sequence[ReplicaStatus],
    reload: Reload | None,
    sources: Iterable[SourceStatus],
    feeds: Iterable[FeedStatus],
    agents: Mapping[ReplicaId, str],
    breakers: Mapping[ReplicaId, str],
    *,
    stopping: bool,
    listening: bool,
) -> list[Notice]:
    """What to look at, the worst first. Empty where all is well."""
    found = []
    if stopping:
        found.append(Notice("fault", "router", "", "the router is stopping: it takes no new connections"))
    elif not listening:
        found.append(Notice("note", "router", "", NOT_LISTENING))
    if not stopping and not is_ready(statuses):
        text = "no replica takes turns: they are refused" if statuses else "there are no replicas"
        found.append(Notice("fault", "replicas", "", text))
    if reload is not None and reload.outcome is Outcome.REFUSED:
        text = f"settings were refused and those before them are in force ({reload.cause})"
        found.append(Notice("fault", "policy", "", text))
    for status in statuses:
        found += _of_replica(status)
    found += [
        Notice("warning", "discovery", one.source, f"{one.source}: {one.fault}")
        for one in sources
        if one.fault
    ]
    found += [
        Notice("warning", "kv-events", one.replica, f"KV events of {one.replica}: {one.why}")
        for one in feeds
        if not one.live
    ]
    found += [
        Notice("warning", "kv-agents", name, f"KV agent {name}: {fault}")
        for name, fault in agents.items()
        if fault
    ]
    found += [
        Notice(
            "warning", "kv-agents", name, f"nothing is pulled from {name} for now: pulls from there failed"
        )
        for name, state in breakers.items()
        if state == Breaker.OPEN
    ]
    order = {"fault": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda notice: order[notice.level])


def _of_replica(status: ReplicaStatus) -> list[Notice]:
    if status.draining:
        return [Notice("note", "replicas", status.id, why_not_ready(status))]
    if status.health != State.HEALTHY:
        level: Literal["warning", "note"] = "warning" if status.health == State.DOWN else "note"
        return [Notice(level, "replicas", status.id, why_not_ready(status))]
    found = []
    if status.recent_failures >= _FAILING:
        text = f"{status.id}: turns fail there" + (f": {status.why}" if status.why else "")
        found.append(Notice("warning", "replicas", status.id, text))
    usage = status.report.kv_usage if status.report is not None else None
    if usage is not None and usage > _FULL:
        found.append(Notice("note", "replicas", status.id, f"{status.id}: its KV is full ({usage:.0%})"))
    return found
