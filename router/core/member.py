"""One replica as the engine keeps it: what was reported of it, what is believed of it, what it has to do.

Knows nothing of turns beyond how many there are, and of no other replica.
"""

from heapq import heappop
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from router.core.claims import Pins
from router.core.delivery import Delivery
from router.core.estimate.slots import wait_for_endings_s
from router.core.fleet import ModelCard, ReplicaSpec, ReplicaStatus, Report, Role
from router.core.health import Event, HealthTracker, State, Transition
from router.core.horizon import Horizon
from router.core.learned import Learned
from router.core.plan import QueueRules
from router.core.request import Turn
from router.core.residency import Residency
from router.core.session import WorkingSet

if TYPE_CHECKING:
    from router.core.queue import Line

# Failures halve every ten seconds: below this a replica's are history.
_FORGOTTEN: Final = 0.01

# Looks at a replica that brought no report before the last one is out of date: some seconds at the default
# interval. A replica that was full then may be empty by now.
_OUTDATED: Final = 5

# Others' work at a replica takes from our horizon, but leaves a quarter of it: a client that floods a replica
# past the router must not shut the router's own out.
_MOST_TO_OTHERS: Final = 0.75

# What a turn has to prefill until turns have shown it: a guess. One that is ten times the usual moves it by
# half.
_SEED_MISSING_TOKENS: Final = 1000.0
_GAIN: Final = 0.05

# Weight of a report of KV usage against those before it.
_USAGE_GAIN: Final = 0.3

# What turns hold may be less than their prompts, which share beginnings, or more, as answers grow.
_LEAST_HELD: Final = 0.3
_MOST_HELD: Final = 1.5


class Lent(NamedTuple):
    """What one engine knows of a replica, for another one that learns nothing itself. Shared: not for the
    borrower to feed."""

    learned: Learned
    delivery: Delivery
    foreign: float | None


class Prefilling(Protocol):
    """A turn whose prompt a replica has yet to prefill."""

    def prefilled(self, now: float) -> None: ...


class Answering(Protocol):
    """A turn that a replica has begun to answer."""

    turn: Turn


class Member:
    """One replica. Only the engine changes it; strategies see a `Candidate`, people a `ReplicaStatus`."""

    __slots__ = (
        "agent_tokens",
        "answering",
        "arriving_tokens",
        "backlog_s",
        "capacity_tokens",
        "cards",
        "delivery",
        "drained",
        "draining",
        "due",
        "epoch",
        "failing",
        "foreign",
        "foreign_tokens",
        "health",
        "held_share",
        "horizon",
        "id",
        "in_flight",
        "kept_waiting",
        "kv_tokens",
        "kv_usage",
        "learned",
        "leaving",
        "line",
        "link_free_at",
        "lost",
        "missing_tokens",
        "models",
        "pending_tokens",
        "pins",
        "placed_at",
        "prefilling",
        "reach",
        "reach_tokens",
        "reloading",
        "report",
        "report_at",
        "residency",
        "restarts",
        "seats",
        "shelf",
        "since",
        "spec",
        "strangers_waiting",
        "unreported",
        "well",
        "working_set",
    )

    def __init__(
        self,
        spec: ReplicaSpec,
        shelf: int,
        epoch: int,
        working_set: WorkingSet,
        learned: Learned,
        pins: Pins,
    ) -> None:
        self.id = spec.id
        self.spec = spec
        self.shelf = shelf
        """What lies on its device."""
        self.reach = shelf
        """What lies on its device or its host: the same shelf where it has no host tier."""
        self.learned = learned
        # One life of one process. Unique over the whole fleet and its past: a replica that left and came
        # back under the same name is another life.
        self.epoch = epoch
        self.working_set = working_set
        self.health = HealthTracker()
        self.well = False
        """Healthy and not draining: may be chosen without asking its health any further."""
        self.draining = False
        """Given no further turns: an operator drained it, or it is leaving the fleet."""
        self.residency: Residency | None = None
        """Its cache by its own events; `None` while they are not followed."""
        self.drained = False
        self.leaving = False
        self.models: frozenset[str] | None = None
        self.cards: tuple[ModelCard, ...] = ()
        self.in_flight = 0
        self.pending_tokens = 0
        self.prefilling: dict[Prefilling, float] = {}
        """The turns that those are of, in order, each with the seconds that it takes."""
        self.backlog_s = 0.0
        """Their sum."""
        self.answering: dict[Answering, None] = {}
        """The turns that it answers, in the order in which they began."""
        self.link_free_at = 0.0
        """When what turns there have on its host will have been brought to the device, if all goes as
        expected."""
        self.reloading: dict[Prefilling, tuple[float, float]] = {}
        """The turns that those are of whose first token is yet to come, in order: when each has a place, and
        the seconds that it takes."""
        self.arriving_tokens = 0
        """KV on its way there from other replicas."""
        self.since = 0.0
        """Since when the first of them has had nothing before it."""
        self.kv_tokens = 0
        """Prompt tokens of our turns there, whose KV they hold or will."""
        self.pins = pins
        """KV that turns of ours have left there for their sessions' next ones."""
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
        self.foreign_tokens = 0.0
        """KV that others held there when it last reported; 0 where it has not told."""
        self.held_share = 1.0
        """KV tokens held for each prompt token of a turn there, as its reports have it."""
        self.seats: float | None = None
        """Requests that it runs at once, where two reports in a row had some waiting with KV to spare."""
        self.kept_waiting = False
        """Whether it last did. Once says little: whoever comes while a step runs waits for its end."""
        self.reach_tokens: int | None = None
        """KV capacity of device and host; `None` where either is not known."""
        self.agent_tokens: int | None = None
        """What its KV agent can hold; `None` where it has none, or none that has told."""
        self.strangers_waiting = 0.0
        """Requests in its queue that were not ours when it last reported."""
        self.missing_tokens = _SEED_MISSING_TOKENS
        """Of a turn of ours there, on average: what is missing of its prompt."""
        self.horizon = Horizon()
        self.line: Line | None = None
        """The turns that wait in the router to go there; `None` where there are none. The queue's."""

    def note(self, report: Report, now: float) -> None:
        """Take in what it reports of itself, so that deciding need not look into the report."""
        self.report = report
        self.report_at = now
        self.learned.settle()
        self.unreported = 0
        self.kv_usage = report.kv_usage
        self.foreign = None
        self.strangers_waiting = max(0.0, (report.waiting or 0.0) - len(self.prefilling))
        if report.running is not None and report.waiting is not None:
            # Ours as of the report: a turn that ends later was in its figures and is no stranger's.
            self.foreign = max(0.0, report.running + report.waiting - self.in_flight)
        self._take_capacity()
        self._take_usage(report.running, report.waiting, report.kv_usage)

    def _take_usage(self, running: float | None, waiting: float | None, usage: float | None) -> None:
        """What others hold, and whether there are places."""
        self.foreign_tokens = 0.0
        self.seats = None
        kept_waiting, self.kept_waiting = self.kept_waiting, False
        if usage is None:
            return
        if self.capacity_tokens is not None:
            # What is kept for claims is counted by itself: it comes and goes between reports.
            held = max(0.0, usage * self.capacity_tokens - self.pins.tokens)
            if self.foreign is None or self.foreign > 0.0:
                self.foreign_tokens = max(0.0, held - self.held_share * self.kv_tokens)
            elif self.kv_tokens and waiting == 0.0:
                share = min(_MOST_HELD, max(_LEAST_HELD, held / self.kv_tokens))
                self.held_share += _USAGE_GAIN * (share - self.held_share)
        if running and waiting and usage * (running + 1.0) < running:
            self.kept_waiting = True
            if kept_waiting:
                self.seats = running

    def take(
        self, turn: Prefilling, prompt_tokens: int, kv_tokens: int, missing_tokens: int, now: float
    ) -> None:
        """A turn is given to it."""
        self.in_flight += 1
        self.kv_tokens += kv_tokens
        if missing_tokens:
            self.pending_tokens += missing_tokens
            work_s = self.learned.curve.work_s(missing_tokens, prompt_tokens)
            if not self.prefilling:
                self.since = now
                self.backlog_s = 0.0
            self.prefilling[turn] = work_s
            self.backlog_s += work_s

    def has_prefilled(self, turn: Prefilling, missing_tokens: int, now: float) -> None:
        """It has computed a turn's prompt."""
        first = next(iter(self.prefilling)) is turn
        self.pending_tokens -= missing_tokens
        self.backlog_s -= self.prefilling.pop(turn)
        if first:
            # Whoever passed the first took nothing from what is done of it.
            self.since = now

    def wait_s(self, now: float) -> float:
        """Until all that was sent there is prefilled. Of the first of it, as much is done as time has passed
        since nothing stood before it."""
        first_s = next(iter(self.prefilling.values()), 0.0)
        return max(0.0, self.backlog_s - min(first_s, max(0.0, now - self.since)))

    def reloads(self, turn: Prefilling, seconds: float, slot_s: float, now: float) -> None:
        """What a turn has on its host is brought to the device, which takes so long: once there is a
        place, in `slot_s`, and behind all that was to be brought before."""
        self.link_free_at = max(self.link_free_at, now + slot_s) + seconds
        self.reloading[turn] = now + slot_s, seconds

    def has_reloaded(self, turn: Prefilling, now: float) -> None:
        """The turn has its first token, or is over: nothing is brought for it any more. Nothing happens where
        nothing was to be."""
        if self.reloading.pop(turn, None) is None:
            return
        # What was expected may have been too much: what is left takes no longer than from here on.
        free_at = now
        for place_at, seconds in self.reloading.values():
            free_at = max(free_at, place_at) + seconds
        self.link_free_at = min(self.link_free_at, free_at)

    def link_s(self, now: float) -> float:
        """Until all that was to be brought from its host is on the device."""
        return max(0.0, self.link_free_at - now)

    def before_s(self, now: float) -> float:
        """Until all that was sent there, and what others have in its queue, is prefilled."""
        wait_s = self.wait_s(now) if self.prefilling else 0.0
        if self.strangers_waiting:
            missing = self.missing_tokens
            wait_s += self.strangers_waiting * self.learned.curve.work_s(missing, missing)
        return wait_s

    def free_tokens(self) -> float | None:
        """KV that is neither in use nor kept for claims nor spoken for by turns on their way there, below 0
        where more is; `None` where it has not told."""
        if self.capacity_tokens is None or self.kv_usage is None:
            return None
        ours = self.held_share * self.kv_tokens + self.pins.tokens
        return self.capacity_tokens - ours - self.foreign_tokens

    def slot_s(self, prompt_tokens: float, wanted_tokens: float, free_tokens: float | None) -> float:
        """Until it has a place, and blocks for a prompt of so many tokens and for the `wanted_tokens` of who
        goes before it. `free_tokens` as above."""
        requests = self.in_flight + (self.foreign or 0.0)
        if requests <= 0.0:
            return 0.0
        # An answer that has lasted will last longer than the mean, and who ends first are the short ones: the
        # mean of all foretells the next ends best.
        holding_s = self.learned.holding.mean_s
        wait_s = 0.0
        if free_tokens is not None and self.capacity_tokens is not None:
            short = prompt_tokens + wanted_tokens - free_tokens
            if short > 0.0:
                each = max(1.0, (self.capacity_tokens - free_tokens) / requests)
                running = min(requests, self.capacity_tokens / each)
                # The last that ends frees half of its own more than is needed.
                wait_s = wait_for_endings_s(short / each + 0.5, prompt_tokens / each, running, holding_s)
        if self.seats is not None and requests >= self.seats:
            wait_s = max(wait_s, wait_for_endings_s(requests + 1.0 - self.seats, 1.0, self.seats, holding_s))
        return wait_s

    def has_agent_for(self, tokens: int | None) -> None:
        """Its KV agent can hold so many tokens; `None` = it has none, or none that has told."""
        self.agent_tokens = tokens
        self._take_capacity()

    def configure(self, spec: ReplicaSpec) -> None:
        """The operator's word on it may have changed."""
        self.spec = spec
        if spec.kv_agent is None:
            self.agent_tokens = None
        self._take_capacity()

    def looked_at(self) -> None:
        """A look at it has begun. Where several brought no report, its load is no longer known; its capacity
        does not change while it lives."""
        self.unreported += 1
        if self.unreported > _OUTDATED:
            self._forget_load()

    def begin_again(
        self, epoch: int, shelf: int, working_set: WorkingSet, learned: Learned, pins: Pins
    ) -> None:
        """Its process is another one: nothing lies there, and nothing of its load is known."""
        self.epoch = epoch
        self.shelf = shelf
        self.reach = shelf
        self.learned = learned
        self.held_share = 1.0
        self.working_set = working_set
        self.pins = pins
        self.residency = None
        self.restarts += 1
        # The turns of the old life died with it, whenever we hear of that. Their tickets are of its epoch
        # and take nothing from these figures.
        self.in_flight = 0
        self.kv_tokens = 0
        self.arriving_tokens = 0
        self.pending_tokens = 0
        self.prefilling = {}
        self.answering = {}
        self.reloading = {}
        self.link_free_at = 0.0
        self.backlog_s = 0.0
        self.due = []
        self.delivery = Delivery()
        self.horizon = Horizon()
        self._forget_load()

    def _forget_load(self) -> None:
        self.kv_usage = None
        self.foreign = None
        self.foreign_tokens = 0.0
        self.seats = None
        self.kept_waiting = False
        self.strangers_waiting = 0.0

    def shares_a_model_with(self, other: "Member") -> bool:
        """Whether some turn may go to either. One that has not said what it serves may serve any model."""
        if (self.spec.role is Role.PREFILL) is not (other.spec.role is Role.PREFILL):
            return False
        return self.models is None or other.models is None or not self.models.isdisjoint(other.models)

    def _take_capacity(self) -> None:
        reported = self.report.kv_capacity_tokens if self.report is not None else None
        self.capacity_tokens = self.spec.kv_tokens if self.spec.kv_tokens is not None else reported
        host = self.report.host_kv_tokens if self.report is not None else None
        if self.agent_tokens is not None:
            # An agent's arena is a host tier: what the device gave up is loaded from it again.
            host = max(host or 0, self.agent_tokens)
        if self.spec.host_kv_tokens is not None:
            host = self.spec.host_kv_tokens
        self.reach_tokens = self.capacity_tokens + (host or 0) if self.capacity_tokens is not None else None

    def observe(self, event: Event, now: float) -> list[Transition]:
        """Feed one event to its health; the answer is what that changed."""
        transitions = self.health.observe(event, now)
        self.settle()
        return transitions

    def settle(self) -> None:
        """Work out anew whether it may be chosen without a further question."""
        self.draining = self.drained or self.leaving
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
            heappop(due)[2].prefilled(now)

    # --- room for held turns ------------------------------------------------------------------------

    def has_room(self, rules: QueueRules) -> bool:
        """Whether it has less to prefill than its horizon, and fewer turns than the policy lets."""
        if rules.in_flight is not None and self.in_flight >= rules.in_flight:
            return False
        pending = float(self.pending_tokens)
        if not pending:
            return True
        horizon = self.horizon.tokens
        if rules.horizon_s is not None:
            horizon = rules.horizon_s / self.learned.curve.token_s
        others = self.strangers_waiting
        if others:
            pending += min(others * self.missing_tokens, _MOST_TO_OTHERS * horizon)
        return pending < horizon

    def fitting_tokens(self) -> float | None:
        """The longest prompt that fits the KV that is free there. `None` where any may go: nothing is known
        of its KV, or nothing of ours is in the way whose end could be waited for."""
        return self.free_tokens() if self.kv_tokens else None

    def has_blocks(self, prompt_tokens: int) -> bool:
        """Whether a prompt fits."""
        most = self.fitting_tokens()
        return most is None or prompt_tokens <= most

    def sent(self, missing_tokens: int) -> None:
        """A turn that could have been held is on its way there."""
        self.horizon.sent(missing_tokens)
        self.missing_tokens += _GAIN * (missing_tokens - self.missing_tokens)

    def describe(self) -> str:
        """Its condition, to go on in a sentence: `is down (connection refused)`."""
        if self.leaving:
            return "is leaving the fleet"
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
            free_tokens=int(free) if (free := self.free_tokens()) is not None else None,
            horizon_tokens=int(self.horizon.tokens),
            leaving=self.leaving,
            role=self.spec.role,
        )
