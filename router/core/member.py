"""One replica as the engine keeps it: what was reported of it, what is believed of it, what it has to do.

Knows nothing of turns beyond how many there are, and of no other replica.
"""

from heapq import heappop
from typing import TYPE_CHECKING, Final, Protocol

from router.core.delivery import Delivery
from router.core.fleet import ModelCard, ReplicaSpec, ReplicaStatus, Report
from router.core.health import Event, HealthTracker, State, Transition
from router.core.horizon import Horizon
from router.core.plan import QueueRules
from router.core.session import WorkingSet

if TYPE_CHECKING:
    from router.core.queue import Line

# Failures halve every ten seconds: below this a replica's are history.
_FORGOTTEN: Final = 0.01

PREFILL_TOKENS_PER_S: Final = 8000.0
"""Prefill rate that is assumed of a replica. A seed, not a promise."""

# Looks at a replica that brought no report before the last one is out of date: some seconds at the default
# interval. A replica that was full then may be empty by now.
_OUTDATED: Final = 5

# Others' work at a replica takes from our horizon, but leaves a quarter of it: a client that floods a replica
# past the router must not shut the router's own out.
_MOST_TO_OTHERS: Final = 0.75

# What a turn has to prefill, and how long its reply holds its KV, until turns have shown it: guesses.
_SEED_MISSING_TOKENS: Final = 1000.0
_SEED_REPLY_S: Final = 5.0

# Weight of a turn in both: one that is ten times the usual moves them by half.
_GAIN: Final = 0.05

# A reply that took longer counts as this long: some are streamed to a client that hardly reads.
_LONGEST_REPLY_S: Final = 120.0


class Prefilling(Protocol):
    """A turn whose prompt a replica has yet to prefill."""

    def prefilled(self) -> None: ...


class Member:
    """One replica. Only the engine changes it; strategies see a `Candidate`, people a `ReplicaStatus`."""

    __slots__ = (
        "capacity_tokens",
        "cards",
        "delivery",
        "draining",
        "due",
        "epoch",
        "failing",
        "foreign",
        "health",
        "horizon",
        "id",
        "in_flight",
        "kv_free",
        "kv_tokens",
        "kv_usage",
        "line",
        "lost",
        "missing_tokens",
        "models",
        "pending_tokens",
        "placed_at",
        "prefill_tps",
        "reply_s",
        "report",
        "report_at",
        "restarts",
        "shelf",
        "spec",
        "starting",
        "strangers_waiting",
        "unreported",
        "well",
        "working_set",
    )

    def __init__(self, spec: ReplicaSpec, shelf: int, epoch: int, working_set: WorkingSet) -> None:
        self.id = spec.id
        self.spec = spec
        self.shelf = shelf
        # One life of one process. Unique over the whole fleet and its past: a replica that left and came
        # back under the same name is another life.
        self.epoch = epoch
        self.working_set = working_set
        self.health = HealthTracker()
        self.well = False
        """Healthy and not draining: may be chosen without asking its health any further."""
        self.draining = False
        self.models: frozenset[str] | None = None
        self.cards: tuple[ModelCard, ...] = ()
        self.in_flight = 0
        self.pending_tokens = 0
        self.starting = 0
        """Turns that those are of."""
        self.kv_tokens = 0
        """Prompt tokens of our turns there, whose KV they hold or will."""
        self.due: list[tuple[float, int, Prefilling]] = []
        """A heap of turns that are not streamed, by when their prefill is expected to be over."""
        self.report: Report | None = None
        """The last one, however old; what deciding goes by is taken from it below."""
        self.report_at = 0.0
        self.unreported = 0
        """Looks since that brought none."""
        self.delivery = Delivery()
        self.lost = False
        """Its process was gone, and it has not been seen well again since."""
        self.placed_at = 0.0
        self.failing = False
        """There are failures of late, so `recent_failures` is worth asking for."""
        self.restarts = 0
        self.capacity_tokens = spec.kv_tokens
        """KV capacity: the operator's word before the replica's; `None` where neither told."""
        self.foreign: float | None = None
        """Requests there that were not ours when it last reported; `None` = not known."""
        self.kv_usage: float | None = None
        """Share of its KV blocks in use, 0 … 1; `None` = not known."""
        self.kv_free: float | None = None
        """Tokens of KV that would be free without `kv_tokens`, as of its last report; `None` = not known."""
        self.strangers_waiting = 0.0
        """Requests in its queue that were not ours when it last reported."""
        self.prefill_tps = PREFILL_TOKENS_PER_S
        """Prompt tokens that it computes a second."""
        self.missing_tokens = _SEED_MISSING_TOKENS
        """Of a turn of ours there, on average: what is missing of its prompt."""
        self.reply_s = _SEED_REPLY_S
        """From a turn's first byte to its end, on average."""
        self.horizon = Horizon()
        self.line: Line | None = None
        """The turns that wait in the router to go there; `None` where there are none. The queue's."""

    def note(self, report: Report, now: float) -> None:
        """Take in what it reports of itself, so that deciding need not look into the report."""
        self.report = report
        self.report_at = now
        self.unreported = 0
        self.kv_usage = report.kv_usage
        self.foreign = None
        self.strangers_waiting = max(0.0, (report.waiting or 0.0) - self.starting)
        if report.running is not None and report.waiting is not None:
            # Ours as of the report: a turn that ends later was in its figures and is no stranger's.
            self.foreign = max(0.0, report.running + report.waiting - self.in_flight)
        self._take_capacity()
        if self.capacity_tokens is not None and report.kv_usage is not None:
            self.kv_free = self.capacity_tokens * (1.0 - report.kv_usage) + self.kv_tokens
        else:
            self.kv_free = None

    def configure(self, spec: ReplicaSpec) -> None:
        """The operator's word on it may have changed."""
        self.spec = spec
        self._take_capacity()

    def looked_at(self) -> None:
        """A look at it has begun. Where several brought no report, its load is no longer known; its capacity
        does not change while it lives."""
        self.unreported += 1
        if self.unreported > _OUTDATED:
            self._forget_load()

    def begin_again(self, epoch: int, shelf: int, working_set: WorkingSet) -> None:
        """Its process is another one: nothing lies there, and nothing of its load is known."""
        self.epoch = epoch
        self.shelf = shelf
        self.working_set = working_set
        self.restarts += 1
        self.delivery = Delivery()
        self.horizon = Horizon()
        self._forget_load()

    def _forget_load(self) -> None:
        self.kv_usage = None
        self.kv_free = None
        self.foreign = None
        self.strangers_waiting = 0.0

    def shares_a_model_with(self, other: "Member") -> bool:
        """Whether some turn may go to either. One that has not said what it serves may serve any model."""
        return self.models is None or other.models is None or not self.models.isdisjoint(other.models)

    def _take_capacity(self) -> None:
        reported = self.report.kv_capacity_tokens if self.report is not None else None
        self.capacity_tokens = self.spec.kv_tokens if self.spec.kv_tokens is not None else reported

    def observe(self, event: Event, now: float) -> list[Transition]:
        """Feed one event to its health; the answer is what that changed."""
        transitions = self.health.observe(event, now)
        self.settle()
        return transitions

    def settle(self) -> None:
        """Work out anew whether it may be chosen without a further question."""
        self.well = self.health.state is State.HEALTHY and not self.draining

    def takes_turns(self) -> bool:
        """Whether it is given turns, be it a limited number."""
        return not self.draining and self.health.state in (State.HEALTHY, State.PROBATION)

    def returning(self, now: float) -> bool:
        """Whether a replica that is not quite well may have one more turn."""
        return not self.draining and self.health.admits(self.in_flight, now)

    def failures_lately(self, now: float) -> float:
        """Failed turns, decayed; until there is something to ask for again, `failing` says so."""
        failures = self.health.recent_failures(now)
        self.failing = failures > _FORGOTTEN
        return failures

    def pass_prefill(self, now: float) -> None:
        """Take the turns whose time for prefill is over as prefilled."""
        due = self.due
        while due and due[0][0] <= now:
            heappop(due)[2].prefilled()

    # --- room for held turns ------------------------------------------------------------------------

    def has_room(self, rules: QueueRules) -> bool:
        """Whether it has less to prefill than its horizon, and fewer turns than the policy lets."""
        if rules.in_flight is not None and self.in_flight >= rules.in_flight:
            return False
        pending: float = self.pending_tokens
        if not pending:
            return True
        horizon = self.horizon.tokens if rules.horizon_s is None else rules.horizon_s * self.prefill_tps
        others = self.strangers_waiting
        if others:
            pending += min(others * self.missing_tokens, _MOST_TO_OTHERS * horizon)
        return pending < horizon

    def has_blocks(self, prompt_tokens: int) -> bool:
        """Whether a prompt fits the KV that is free there, as far as is known; one that nothing of ours is
        in the way of need not wait for it."""
        free = self.kv_free
        return free is None or not self.kv_tokens or prompt_tokens + self.kv_tokens <= free

    def sent(self, missing_tokens: int) -> None:
        """A turn that could have been held is on its way there."""
        self.horizon.sent(missing_tokens)
        self.missing_tokens += _GAIN * (missing_tokens - self.missing_tokens)

    def replied(self, seconds: float) -> None:
        """A turn of ours ended so long after its first byte."""
        self.reply_s += _GAIN * (min(seconds, _LONGEST_REPLY_S) - self.reply_s)

    def describe(self) -> str:
        """Its condition, to go on in a sentence: `is down (connection refused)`."""
        if self.draining:
            return "is draining"
        why = self.health.why
        state = self.health.state.value
        return f"is {state} ({why})" if why else f"is {state}"

    def status(self, now: float, index_segments: int) -> ReplicaStatus:
        """A copy for people."""
        return ReplicaStatus(
            id=self.id,
            url=self.spec.url,
            health=self.health.state.value,
            why=self.health.why,
            draining=self.draining,
            models=tuple(sorted(self.models)) if self.models is not None else None,
            in_flight=self.in_flight,
            pending_tokens=self.pending_tokens,
            working_set_tokens=self.working_set.tokens,
            sessions=self.working_set.sessions,
            index_segments=index_segments,
            report=self.report,
            report_age_s=now - self.report_at if self.report is not None else None,
            capacity_tokens=self.capacity_tokens,
            recent_failures=self.health.recent_failures(now),
            restarts=self.restarts,
            trust=self.delivery.trust,
            held=len(self.line) if self.line is not None else 0,
            free_tokens=int(self.kv_free) - self.kv_tokens if self.kv_free is not None else None,
            horizon_tokens=int(self.horizon.tokens),
        )
