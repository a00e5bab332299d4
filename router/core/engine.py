"""The engine: holds what is known of fleet, sessions and prefixes, and turns it into decisions.

Everything it learns arrives as a method call with the time; everything it does is an answer. It opens no
socket, reads no clock and keeps no task, so the proxy, the tests and the simulator run the same one.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from heapq import heappush
from itertools import count
from random import Random
from typing import Final, NoReturn

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.decide import (
    Candidate,
    Choice,
    Decision,
    FleetView,
    Kind,
    Pulls,
)
from router.core.estimate.prefill import PrefillCurve
from router.core.fleet import ModelCard, ReplicaSpec, ReplicaStatus, Report, Resident, Role
from router.core.health import (
    Event,
    ProbeFailed,
    ProbePassed,
    Restarted,
    State,
    TurnFailed,
    TurnSucceeded,
)
from router.core.heard import HeardResponse, HeardTurn
from router.core.holdings import AgentReport, Holdings
from router.core.learned import Learned
from router.core.leg import Leg
from router.core.member import Lent, Member
from router.core.memory import (
    SAME_START_S,
    Memory,
    ReplicaMemory,
    ResponseMemory,
    SessionMemory,
    lives,
    why_cold,
)
from router.core.model import Model
from router.core.observe import FAILURES, NEUTRAL, Ended, HealthChange, Outcome, Prefilled, Usage, WaitEnd
from router.core.observer import Observer
from router.core.pairbook import PairBook, PairEnd
from router.core.pairing import Pairing, behind, choose, prices_of
from router.core.plan import PairRules, Plan, PullRules
from router.core.prefix import PrefixIndex
from router.core.pullbook import CAME, PullBook, Pulled
from router.core.pulling import LEAST_FETCH_S, Pulling
from router.core.queue import Chosen, Held, due_at
from router.core.request import Turn
from router.core.residency import Residency
from router.core.retry import RetryBudget
from router.core.ring import Ring
from router.core.session import OWN_DIGITS, Session, SessionTable
from router.core.stored import Stored, StoredResponses
from router.core.ticket import Ticket
from router.core.waiting import Rank, Waiting

# A replica that has not told its capacity is believed to hold this many tokens: a small 80 GiB card's
# share for a mid-size model. Too high costs wrong predictions, too low forgets what is there.
_UNKNOWN_CAPACITY_TOKENS: Final = 600_000

# Models a fleet serves, adapters included. Beyond it, those used longest ago are learned again.
_MAX_MODELS: Final = 1024

# Idle sessions are dropped so often and so many at once: more than can come in between.
_EXPIRE_EVERY_S: Final = 0.05
_EXPIRE_MOST: Final = 2048

# How an attempt ends at a replica that is not there (any more).
_GONE: Final = frozenset({Outcome.DIED, Outcome.CONNECT_FAILED})

# How the prefill ends of a replica that could not fetch what it was sent: it speaks against the path.
_DECLINED: Final = frozenset({Outcome.SERVER_ERROR, Outcome.TIMEOUT})

_AUTO_RELATIVE: Final = 2.0
_AUTO_ABSOLUTE: Final = 32


class Engine:
    """Decides for every turn, and keeps the books. Single-threaded; no method awaits.

    `plans[0]` is the default policy; `admit` and `decide` take the index of the one in force for a turn.
    `on_detach` is told of an observer that raised and is therefore detached. Without a `pullbook` no KV is
    pulled: whoever gives one carries out the pulls that decisions name. With `holdings`, a KV agent has to be
    heard of before anything is pulled from it or by it; without, every agent is taken to be there, and to
    hold what its replica is believed to. `on_stored` is told of responses that replicas store, and must not
    raise.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        rng: Random,
        observer: Observer | None = None,
        on_detach: Callable[[Exception], None] | None = None,
        index: PrefixIndex | None = None,
        sessions: SessionTable | None = None,
        pullbook: PullBook | None = None,
        holdings: Holdings | None = None,
        on_stored: Callable[[TenantId, str, Stored], None] | None = None,
    ) -> None:
        self._pulling = Pulling(pullbook, holdings) if pullbook is not None else None
        """`None` where nothing is pulled."""
        self._holdings = holdings
        self._on_stored = on_stored
        self._rng = rng
        self._observer = observer
        self._on_detach = on_detach
        self._index = index if index is not None else PrefixIndex()
        self._sessions = sessions if sessions is not None else SessionTable()
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._responses = StoredResponses()
        self._members: dict[ReplicaId, Member] = {}
        self._prefill_curves: dict[tuple[str, Role], PrefillCurve] = {}
        """What replicas that serve the same are learned of together, by base model and role."""
        self._ordered: tuple[Member, ...] = ()
        self._answering: tuple[Member, ...] = ()
        """Those that answer turns: all but the prefill replicas."""
        self._prefills: tuple[Member, ...] = ()
        self._two_way: frozenset[ReplicaId] = frozenset()
        """Prefill replicas that may fetch what decode holds."""
        self._decodes: frozenset[ReplicaId] = frozenset()
        self._prefill_ring = Ring(())
        self._followed = 0
        """Replicas whose KV events are followed."""
        self._ready: dict[str, list[Member]] = {}
        self._rings: dict[int, Ring] = {}
        self._waiting = Waiting(self)
        self.pairs = PairBook(plans[0].pull if plans else PullRules())
        """What decode replicas offer, and what became of pairs."""
        self._expire_at = 0.0
        self._epochs = count()
        self._admitted = count()
        self._plans: tuple[Plan, ...] = ()
        """Those in force, then the default in the places of those that were."""
        self._in_force: tuple[Plan, ...] = ()
        self._budgets: tuple[RetryBudget, ...] = ()
        # Decisions a plan has made, and how many of them its retry budget has been told of.
        self._served: list[int] = []
        self._deposited: list[int] = []
        self.set_plans(plans)
        self.set_replicas((), 0.0)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The policies in force, the default first."""
        return self._in_force

    def set_plans(self, plans: Sequence[Plan]) -> None:
        """Put these policies in force, all at once; `plans[0]` is the default. Raises `ValueError` for none.

        A turn that is under way goes by the place of its policy: under what stands there now, or under the
        default where nothing does.
        """
        if not plans:
            raise ValueError("an engine needs at least one plan")
        before, budgets = self._plans, self._budgets
        self._in_force = tuple(plans)
        padded = (*plans, *(plans[0] for _ in range(len(before) - len(plans))))
        self._plans = padded
        self._budgets = tuple(
            budgets[at]
            if at < len(before) and before[at].retry.budget == plan.retry.budget
            else RetryBudget(share=plan.retry.budget)
            for at, plan in enumerate(padded)
        )
        new = [0] * (len(padded) - len(before))
        self._served += new
        self._deposited += new
        self._sessions.idle_s = max(plan.session.idle_s for plan in plans)
        if self._pulling is not None:
            self._pulling.follow(plans[0].pull)
        self._set_rings()

    # --- deciding -----------------------------------------------------------------------------------

    def admit(
        self,
        turn: Turn,
        now: float,
        *,
        plan: int = 0,
        failed: tuple[ReplicaId, ...] = (),
        chosen: Chosen | None = None,
    ) -> Ticket:
        """Choose a replica and count the turn there. Raises `Refused`.

        `failed` names the replicas that failed this very turn, in order: they are not chosen again. `chosen`:
        what was chosen already, at this time.
        """
        name = turn.model
        if turn.response_id is not None:
            turn, name = self._continued(turn)
        # One that is not known is learned of once a replica has a turn for it: not from what is refused.
        model = self._models.get(name)
        new = model is None
        if model is None:
            model = Model(name)
        try:
            decision, member, depth = chosen or self._decide(turn, now, plan, failed, model)
        except Refused as refusal:
            if not failed:
                # A turn that some replica had and failed is counted there: it was not refused.
                self.tell_refused(turn, refusal, now)
            raise
        if new:
            self._models[name] = model
            if len(self._models) > _MAX_MODELS:
                self._models.popitem(last=False)
        elif len(self._models) == _MAX_MODELS:
            # Only then does it matter which was used last.
            self._models.move_to_end(name)
        self._served[plan] += 1
        ticket = Ticket(self, turn, decision, member, model, depth)
        if decision.pull is not None and self._pulling is not None:
            self._pulling.began(ticket, now)
        missing = ticket.missing
        member.take(ticket, decision.prompt_tokens, ticket.kv_tokens, missing, now)
        if missing and not turn.stream:
            # The answer's first byte comes after all decoding, so it says nothing of prefill.
            heappush(member.due, (now + member.wait_s(now), next(self._admitted), ticket))
        if decision.kind is Kind.NEW:
            member.placed_at = now
        if self._observer is not None:
            try:
                self._observer.on_decision(turn, decision)
            except Exception as error:  # noqa: BLE001 - an observer must never stop routing
                self._detach(error)
        return ticket

    # --- waiting ------------------------------------------------------------------------------------

    def enter(
        self,
        turn: Turn,
        now: float,
        *,
        plan: int = 0,
        priority: str | None = None,
        wait_s: float | None = None,
        size: int = 0,
    ) -> Ticket | Held:
        """Choose a replica and count the turn there, or let it wait until one has room. Raises `Refused`.

        `priority`: one of the policy's. `wait_s`: how long its client waits, if less than the policy allows.
        `size`: bytes of its body. Turns without a prompt to prefill never wait.
        """
        rules = self._plans[plan].queue
        if rules is None or not turn.computes or not turn.chain.hashes:
            return self.admit(turn, now, plan=plan)
        if turn.response_id is not None:
            turn = self._continued(turn)[0]
        lead_s = rules.leads_s[priority] if priority is not None else 0.0
        return self._waiting.enter(turn, now, plan=plan, rules=rules, lead_s=lead_s, wait_s=wait_s, size=size)

    def dispatch(self, now: float) -> tuple[list[tuple[Held, Ticket]], list[tuple[Held, Refused]]]:
        """The held turns that go to a replica now, and those that wait no longer and are refused.

        To be called when anything happened that may have made room: a first byte, an end, a report, a change
        of health, a departure from the queue, or the time of `wake_at`.
        """
        return self._waiting.dispatch(now)

    def leave(self, held: Held, now: float) -> None:
        """The client of a held turn has gone. Nothing happens where it waits no longer."""
        self._waiting.leave(held, now)

    def wake_at(self) -> float | None:
        """When `dispatch` may have something to do although nothing happens; `None` = never."""
        return self._waiting.wake_at()

    @property
    def held(self) -> int:
        """Turns that wait."""
        return len(self._waiting)

    def choose(self, turn: Turn, now: float, plan: int, rank: Rank) -> Chosen:
        """Where a turn that may wait would go, as things are. Raises `Refused`. For `Waiting` to call, as are
        those that follow."""
        name = self._continued(turn)[1] if turn.response_id is not None else turn.model
        return self._decide(turn, now, plan, (), self._model(name), rank)

    def is_open(self, member: Member) -> bool:
        """Whether it is in the fleet and given turns."""
        return self._members.get(member.id) is member and member.takes_turns()

    def has_idle(self) -> bool:
        """Whether a replica that is given turns has nothing to prefill, and none that wait for it."""
        return any(
            member.line is None and not member.pending_tokens and member.takes_turns()
            for member in self._answering
        )

    def may_pull(self, decision: Decision, now: float) -> bool:
        """Whether the pull that it was made with may begin, or what it waits for is still on its way."""
        return self._pulling is not None and self._pulling.may_begin(decision, now)

    def tell_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        """A turn waits no longer."""
        self._tell(lambda o: o.on_waited(turn, waited_s, end))

    def tell_refused(self, turn: Turn, refusal: Refused, now: float) -> None:
        """No replica gets a turn, and none had it."""
        kind, message = refusal.kind, refusal.message
        self._tell(lambda o: o.on_refused(turn, kind, message, now))

    def decide(self, turn: Turn, now: float, *, plan: int = 0) -> Decision:
        """What `admit` would choose, without counting anything. Raises `Refused`.

        Draws from a copy of the random source, so that asking does not change what comes next.
        """
        name = turn.model
        if turn.response_id is not None:
            turn, name = self._continued(turn)
        state = self._rng.getstate()
        try:
            return self._decide(turn, now, plan, (), self._model(name))[0]
        finally:
            self._rng.setstate(state)

    def plan_of(self, policy: str) -> int:
        """The index of the policy of a name; the default's if it is in force no longer."""
        return next((index for index, plan in enumerate(self._plans) if plan.name == policy), 0)

    def will_leave(self, replica: ReplicaId, *, plan: int = 0) -> bool:
        """Whether the sessions that live there will have their next turns elsewhere, as things are: it
        drains, or has less KV free than the plan wants, if it wants any."""
        member = self._members.get(replica)
        if member is None or member.draining or member.leaving:
            return True
        kv_usage = self._plans[plan].overload.kv_usage
        return kv_usage is not None and member.kv_usage is not None and member.kv_usage > kv_usage

    def may_retry(self, outcomes: Sequence[Outcome], now: float, *, plan: int = 0) -> bool:
        """Whether a turn whose attempts ended so may be tried on another replica. Draws on the budget."""
        retry = self._plans[plan].retry
        deaths = sum(outcome is Outcome.DIED for outcome in outcomes)
        if len(outcomes) > retry.attempts or deaths > retry.after_death:
            return False
        # The budget keeps retries from multiplying the load of a fleet that fails. What a replica had that is
        # gone is moved, not multiplied; and all of it comes at once.
        if outcomes[-1] in _GONE:
            return True
        budget = self._budgets[plan]
        budget.deposit(now, self._served[plan] - self._deposited[plan])
        self._deposited[plan] = self._served[plan]
        return budget.withdraw(now)

    def stored(self, tenant: TenantId, response_id: str, ticket: Ticket) -> None:
        """A response with this id is stored on the ticket's replica: later references are pinned there.

        May be called again."""
        turn = ticket.turn
        tail = turn.chain.hashes[-1] if turn.chain.hashes else 0
        stored = Stored(ticket.decision.replica, ticket.epoch, turn.session, turn.model, tail)
        self._responses.keep(tenant, response_id, stored)
        if self._on_stored is not None:
            self._on_stored(tenant, response_id, stored)

    def _continued(self, turn: Turn) -> tuple[Turn, str]:
        """The turn with its session, and the model that it is of.

        A turn that goes on from a stored response is of that response's session, unless it has an id of its
        own: it carries nothing else that a session could be derived from. One that only looks at a response
        names no model, so any replica may have it; it is of the response's all the same.
        """
        assert turn.response_id is not None
        stored = self._responses.find(turn.tenant, turn.response_id)
        if stored is None:
            return turn, turn.model
        name = turn.model or stored.model
        if turn.session is not None and turn.session_source != "derived":
            return turn, name
        return turn.replace(session=stored.session), name

    def _decide(
        self,
        turn: Turn,
        now: float,
        plan_index: int,
        failed: tuple[ReplicaId, ...],
        model: Model,
        rank: Rank | None = None,
    ) -> Chosen:
        """The decision, its replica, and how many leading segments are believed to lie there.

        `rank`: of a turn that may wait; `None` for one that does not.
        """
        plan = self._plans[plan_index]
        view, depths = self._look(turn, now, plan_index, self._eligible(turn, now, failed), model, rank)
        pair = self._pair(turn, now, plan_index, model, ()) if self._prefills and turn.pairs else None
        if pair is not None:
            view = self._behind(view, pair)
        pinned = self._pinned(turn, view) if turn.response_id is not None else None
        choice = pinned if pinned is not None else plan.strategy.choose(turn, view, self._rng)
        chosen, reason, pull, price_list = choice.candidate, choice.reason, choice.pull, choice.price_list
        replica = chosen.replica
        candidates, home, prompt_tokens = view.candidates, view.home, view.prompt_tokens
        if failed:
            kind = Kind.FAILOVER
        elif pinned is not None:
            kind = Kind.HOME
        elif turn.session is None:
            kind = Kind.PASS
        elif home is None:
            kind = Kind.NEW
        elif replica == home:
            kind = Kind.HOME
        elif pull is not None:
            kind = Kind.PULL
        elif any(candidate.replica == home for candidate in candidates):
            kind = Kind.SPILL
        else:
            kind = Kind.FAILOVER
        cached = chosen.cached_tokens + (pull.tokens if pull is not None else 0)
        depth = 0
        member = self._members[replica]
        if pair is not None and replica in pair.decodes:
            # Whatever KV the two have from elsewhere goes through prefill.
            pull, cached = None, pair.cached_tokens
            if kind is not Kind.FAILOVER:
                kind = Kind.PAIR if pair.pull is None else Kind.PAIR_PULL
            if turn.one_way:
                reason += "; streamed, so nothing comes back from decode"
        else:
            depth = depths.get(member.reach, 0)
            if self._prefills and turn.pairs and replica in self._decodes:
                reason += "; no prefill replica can take its prompt"
            pair = None
        if not member.well and not member.returning(now):
            reason += "; over its share while returning, as no replica is well"
        decision = Decision(
            replica,
            kind,
            reason,
            plan.name,
            candidates,
            choice.prices,
            home,
            prompt_tokens,
            cached if cached < prompt_tokens else prompt_tokens,
            len(failed),
            now,
            0.0,
            pull,
            price_list,
            view.pulls if price_list is not None else None,
            pair,
        )
        return decision, member, depth

    def _eligible(self, turn: Turn, now: float, failed: tuple[ReplicaId, ...]) -> list[Member]:
        """Replicas that this turn may go to. Raises `Refused` with the reason there are none.

        A replica that has not said what it serves may be sent any model.
        """
        members = self._ready.get(turn.model)
        if members is None:
            members = self._find_ready(turn.model, now)
        if failed:
            members = [member for member in members if member.id not in failed]
        if not members:
            members = self._all_returning(turn.model, failed)
        if not members:
            self._refuse(turn, now, failed)
        return members

    def _find_ready(self, name: str, now: float) -> list[Member]:
        """Who may be given a turn for this model; kept until anybody's health, models or drain change."""
        members = [
            member
            for member in self._answering
            if (member.well or member.returning(now))
            and (member.models is None or name in member.models or not name)
        ]
        # A returning replica's share depends on the moment. That there is nobody is not worth keeping: there
        # is no end of names that nobody serves.
        if members and not any(member.health.state is State.PROBATION for member in self._ordered):
            if len(self._ready) >= _MAX_MODELS:
                self._ready.clear()
            self._ready[name] = members
        return members

    def _all_returning(self, name: str, failed: tuple[ReplicaId, ...]) -> list[Member]:
        """Who is returning and has its share of turns already, where nobody serves this model that is well.

        The share spares a replica while others carry the load. After a restart of the whole fleet there are
        no others, and the turns would be refused.
        """
        serving = [
            member
            for member in self._answering
            if member.takes_turns() and (member.models is None or name in member.models or not name)
        ]
        if any(member.health.state is State.HEALTHY for member in serving):
            return []
        return [member for member in serving if member.id not in failed]

    def _refuse(self, turn: Turn, now: float, failed: tuple[ReplicaId, ...]) -> NoReturn:
        """Say why no replica may have the turn."""
        if not self._ordered:
            raise Refused(
                ErrorKind.NO_REPLICAS, "no replicas are configured: add them to the config, or pass --replica"
            )
        if failed:
            raise Refused(
                ErrorKind.UPSTREAM_FAILED, f"no further replica to try: {', '.join(failed)} failed this turn"
            )
        if not self._answering:
            raise Refused(
                ErrorKind.NONE_HEALTHY,
                "no replica can take this turn: all that there are only prefill; one with role decode or both"
                " must answer",
                retry_after_s=1.0,
            )
        well = [member for member in self._answering if member.well or member.returning(now)]
        if not well:
            states = ", ".join(f"{member.id} {member.describe()}" for member in self._answering[:8])
            more = len(self._answering) - 8
            raise Refused(
                ErrorKind.NONE_HEALTHY,
                f"no replica can take this turn: {states}" + (f" and {more} more" if more > 0 else ""),
                retry_after_s=1.0,
            )
        served = sorted({model for member in well for model in member.models or ()})
        raise Refused(
            ErrorKind.NO_SUCH_MODEL,
            f"no live replica serves the model {turn.model!r}; served: {', '.join(served[:16]) or 'none'}",
        )

    def _look(
        self,
        turn: Turn,
        now: float,
        plan_index: int,
        members: list[Member],
        model: Model,
        rank: Rank | None,
    ) -> tuple[FleetView, dict[int, int]]:
        """The frozen view for one turn, and how deep each shelf holds its prompt. Raises `Refused` where all
        are over a hard limit."""
        plan = self._plans[plan_index]
        hashes, ends = turn.chain.hashes, turn.chain.ends
        ratio = model.ratio.value
        prompt_tokens = int(ends[-1] * ratio) if ends else 0
        depths: dict[int, int] = {}
        if hashes:
            for shelf, deep in self._index.match(hashes):
                depths[shelf] = deep
        home: ReplicaId | None = None
        home_cached = -1
        session = self._sessions.get(model.key(turn.session), now) if turn.session is not None else None
        parent: ReplicaId | None = None
        if session is None and turn.parent is not None:
            started_by = self._sessions.get(model.key(turn.parent), now)
            parent = started_by.home if started_by is not None else None
        elif session is not None:
            home_member = self._members.get(session.home)
            if home_member is None:
                home = session.home
            elif home_member.epoch == session.home_epoch:
                home = session.home
                resident = session.resident_tokens
                depth = depths.get(home_member.reach, 0)
                if depth and hashes[depth - 1] == session.tail:
                    # The prompt goes on from the last turn: its length and its reply are known, not
                    # estimated, and the reply's tokens are in the cache too.
                    grown = int((ends[-1] - ends[depth - 1]) * ratio)
                    prompt_tokens = resident - session.reply_tokens + grown
                    # Where the prompt grew by less than the reply, not all of that came back: its reasoning
                    # was dropped, and with it what lies behind.
                    home_cached = (
                        resident if grown >= session.reply_tokens else resident - session.reply_tokens
                    )
                    home_cached = home_cached if home_cached < prompt_tokens else prompt_tokens
                elif hashes and turn.response_id is not None and self._goes_on(turn, session):
                    # The body holds only what is new: all that came before is in the replica's keeping.
                    home_cached = resident
                    prompt_tokens += resident

        limit = plan.overload.in_flight
        # A replica whose KV is full is as busy as it should be where turns wait here for it to be free.
        kv_limit = plan.overload.kv_usage if plan.queue is None else None
        in_flights = [member.in_flight for member in members]
        if limit is None:
            most = int(_AUTO_RELATIVE * sum(in_flights) / len(members)) + _AUTO_ABSOLUTE
        else:
            most = limit - 1
            if min(in_flights) > most and rank is None:
                raise Refused(
                    ErrorKind.OVERLOADED,
                    f"every replica for this turn is at the policy's limit of {limit} turns in flight",
                    retry_after_s=1.0,
                )
        known: dict[ReplicaId, int] | None = None
        moved: ReplicaId | None = None
        if self._followed and turn.session is not None:
            known = _resident(turn.session, members)
            if home_cached < 0 and home in known and session is not None and session.tail in hashes:
                # It goes on from the last turn, though bookkeeping has let go of that turn's segments.
                grown = ends[-1] - ends[hashes.index(session.tail)]
                prompt_tokens = session.resident_tokens - session.reply_tokens + int(grown * ratio)
                home_cached = 0
            moved = _elsewhere(known, home, session.resident_tokens if session is not None else 0)
            if moved is not None:
                home = moved
        candidates = []
        for member in members:
            if member.due:
                member.pass_prefill(now)
            in_flight = member.in_flight
            over: str | None = None
            if in_flight > most:
                over = f"{in_flight} in flight, limit {most + 1}"
            elif kv_limit is not None:
                usage = member.kv_usage
                if usage is not None and usage > kv_limit:
                    over = f"KV usage {usage:.2f}, limit {kv_limit:g}"
            replica = member.id
            if replica == home and home_cached >= 0:
                cached = home_cached
            elif depth := depths.get(member.reach, 0):
                cached = int(ends[depth - 1] * ratio)
            else:
                cached = 0
            reloaded = 0
            if known is not None and replica in known:
                # Where the prompt goes on from the session's last, all that lies there is found; where it
                # does not, no more than what it shares with it.
                resident = known[replica]
                goes_on = session is None or replica == moved or (replica == home and home_cached >= 0)
                if goes_on or resident < cached:
                    cached = resident
                if cached > prompt_tokens:
                    cached = prompt_tokens
            elif cached:
                trust = member.delivery.trust
                if trust != 1.0:
                    cached = int(cached * trust)
            if cached and member.reach != member.shelf:
                near = depths.get(member.shelf, 0)
                if near < depths.get(member.reach, 0):
                    reloaded = max(0, cached - int(ends[near - 1] * ratio)) if near else cached
            curve = member.learned.curve
            wait_s = member.wait_s(now) if member.prefilling else 0.0
            if member.strangers_waiting:
                others = member.missing_tokens
                wait_s += member.strangers_waiting * curve.work_s(others, others)
            line = member.line
            held = ahead = wanted = held_turns = 0
            if line is not None:
                held, held_turns = line.tokens, len(line)
                if rank is not None:
                    ahead, wanted = line.ahead(due_at(*rank, member, prompt_tokens - cached, prompt_tokens))
                    wait_s += ahead * curve.token_s
            free = member.free_tokens()
            slot_s = waiting = 0.0
            if (free is not None and prompt_tokens + wanted > free) or member.seats is not None:
                slot_s = member.slot_s(prompt_tokens, wanted, free)
                waiting = held_turns + len(member.prefilling) + member.strangers_waiting
            candidates.append(
                Candidate(
                    replica,
                    cached,
                    in_flight,
                    member.pending_tokens,
                    member.working_set.tokens,
                    member.capacity_tokens,
                    member.foreign,
                    member.failures_lately(now) if member.failing else 0.0,
                    member.placed_at,
                    over,
                    free,
                    held,
                    ahead,
                    held_turns,
                    reloaded,
                    member.reach_tokens,
                    wait_s,
                    slot_s,
                    curve,
                    waiting,
                    member.learned.holding.mean_s,
                    member.arriving_tokens,
                )
            )
        pulls: Pulls | None = None
        if self._pulling is not None:
            pulls = self._pulling.view(turn, session, ends, ratio, depths, now)
        view = FleetView(
            now,
            tuple(candidates),
            home,
            prompt_tokens,
            self._rings[plan.vnodes],
            self._served[plan_index],
            parent,
            pulls,
        )
        return view, depths

    def _goes_on(self, turn: Turn, session: Session) -> bool:
        """Whether the response that the turn refers to is the answer to the session's last turn."""
        assert turn.response_id is not None
        stored = self._responses.find(turn.tenant, turn.response_id)
        return stored is not None and stored.tail == session.tail

    def _pinned(self, turn: Turn, view: FleetView) -> Choice | None:
        """The replica that stores the response that the turn refers to; `None` if nobody knows it.

        Raises `Refused` when it is known and cannot be reached, as no other replica has the response, and
        when it is not known to be the tenant's own.
        """
        assert turn.response_id is not None
        pin = self._responses.find(turn.tenant, turn.response_id)
        if pin is None:
            if turn.tenant != OPEN_TENANT:
                # Replicas know no tenants: whoever has its id would be given another's conversation.
                raise Refused(
                    ErrorKind.NOT_FOUND,
                    f"no response {turn.response_id!r} of yours is known here; send the conversation in full",
                )
            return None
        replica = pin.replica
        member = self._members.get(replica)
        if member is None or member.epoch != pin.epoch:
            self._responses.forget(turn.tenant, turn.response_id)
            raise Refused(
                ErrorKind.PINNED_GONE,
                f"response {turn.response_id!r} was stored on replica {replica}, which has since "
                f"{'left' if member is None else 'restarted'}; send the conversation in full instead",
            )
        for candidate in view.candidates:
            if candidate.replica == replica:
                return Choice(candidate, "holds the response")
        raise Refused(
            ErrorKind.PINNED_GONE,
            f"response {turn.response_id!r} is stored on replica {replica}, which {member.describe()}",
            retry_after_s=1.0,
        )

    # --- learning from turns ------------------------------------------------------------------------

    def accepted(self, ticket: Ticket, now: float) -> None:
        """The ticket's replica has begun to answer it. For the ticket to call."""
        turn, member = ticket.turn, ticket.member
        if self._pulling is not None:
            self._pulling.landed(ticket, now)
        hashes, ends = turn.chain.hashes, turn.chain.ends
        # A turn without a prompt leaves nothing behind that a session could have a home by.
        if not hashes or not turn.computes or not self._still_has(ticket):
            return
        self._index.touch(member.shelf, hashes, ends)
        if member.reach != member.shelf:
            self._index.touch(member.reach, hashes, ends)
        if turn.session is None:
            return
        _, before = self._sessions.bind(
            ticket.model.key(turn.session),
            home=member.id,
            epoch=member.epoch,
            resident_tokens=ticket.decision.prompt_tokens,
            tail=hashes[-1],
            reply_tokens=0,
            model=turn.model,
            tenant=turn.tenant,
            source=turn.session_source,
            now=now,
        )
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_EVERY_S
            self._sessions.expire(now, _EXPIRE_MOST)
        if before is not None and self._observer is not None:
            session, after = turn.session, member.id
            self._tell(lambda o: o.on_moved(session, before, after, now))

    def ended(self, ticket: Ticket, outcome: Outcome, now: float, usage: Usage | None) -> None:
        """The ticket is over. For the ticket to call."""
        turn, member = ticket.turn, ticket.member
        if ticket.of_this_life:
            member.in_flight -= 1
            member.kv_tokens -= ticket.kv_tokens
        if self._pulling is not None:
            self._pulling.landed(ticket, now)
        began = ticket.first_byte_at
        if began is not None and outcome is Outcome.COMPLETED and turn.stream and self._still_has(ticket):
            member.learned.holding.observe(now - began)
        if outcome in FAILURES:
            self._failed(ticket, outcome, now)
        elif (member.failing or not member.well) and outcome not in NEUTRAL and self._still_has(ticket):
            # A success changes nothing where there is nothing to recover from: most turns skip the call.
            self._health(member, TurnSucceeded(), now)
        if usage is not None and usage.prompt_tokens is not None:
            hashes, ends = turn.chain.hashes, turn.chain.ends
            if ends and turn.response_id is None:
                ticket.model.ratio.observe(ends[-1], usage.prompt_tokens)
                if usage.cached_tokens is not None:
                    self._delivered(ticket, usage.prompt_tokens, usage.cached_tokens, now)
            if turn.session is not None and ticket.ttft_s is not None:
                reply = usage.completion_tokens or 0
                self._sessions.credit(
                    ticket.model.key(turn.session),
                    home=member.id,
                    epoch=ticket.epoch,
                    tail=hashes[-1] if hashes else 0,
                    resident_tokens=usage.prompt_tokens + reply,
                    reply_tokens=reply,
                )
        if turn.last and turn.session is not None and outcome not in FAILURES:
            # One that failed will be sent again.
            self._sessions.forget(ticket.model.key(turn.session))
            self.pairs.claims.end_session(ticket.model.key(turn.session))
        if self._observer is not None:
            decision = ticket.decision
            ttft_s = ticket.ttft_s if turn.stream else None
            try:
                self._observer.on_ended(Ended(turn, decision, outcome, usage, ttft_s, now - decision.at, now))
            except Exception as error:  # noqa: BLE001 - an observer must never stop routing
                self._detach(error)

    def pulled(self, ticket: Ticket, pulled: Pulled, now: float) -> None:
        """How the pull that a turn was sent with ended. Nothing happens where that is known already."""
        if self._pulling is not None:
            self._pulling.ended(ticket, pulled, now)

    # --- prefill and decode -------------------------------------------------------------------------

    def _pair(
        self, turn: Turn, now: float, plan_index: int, model: Model, failed: tuple[ReplicaId, ...]
    ) -> Pairing | None:
        """Who would compute the turn's prompt; `None` where nobody can."""
        members = [
            member
            for member in self._prefills
            if (member.well or member.returning(now))
            and member.id not in failed
            and (member.models is None or turn.model in member.models)
        ]
        if not members or not self._decodes:
            return None
        # As a turn that may wait, which no limit refuses: who answers is what limits are for.
        view, _ = self._look(turn, now, plan_index, members, model, (now, 1.0))
        book, prompt_tokens = self.pairs, view.prompt_tokens
        pulls: Pulls | None = None
        order: Iterable[ReplicaId] = ()
        if turn.session is not None:
            order = self._prefill_ring.order(turn.session)
            claim = book.claims.peek(model.key(turn.session), now) if turn.returns else None
            if claim is not None and self._two_way:
                tokens = min(len(claim.tokens), prompt_tokens)
                pulls = book.transfers.view([(claim.replica, tokens)], self._two_way, now)
                if pulls is not None:
                    # Unlike a pull between agents, one that fails is declined at once: that is no risk.
                    pulls = pulls._replace(sources=tuple([s._replace(chance=1.0) for s in pulls.sources]))
        prices = prices_of(self._plans[plan_index].pair)
        return choose(view.candidates, prompt_tokens, prices, pulls, self._decodes, order)

    def _behind(self, view: FleetView, pair: Pairing) -> FleetView:
        start_s, token_s = self.pairs.transfers.path(pair.prefill, pair.prefill)
        return behind(view, pair, start_s, token_s)

    def begin_prefill(
        self, ticket: Ticket, now: float, *, plan: int = 0, failed: tuple[ReplicaId, ...] = ()
    ) -> Leg | None:
        """Give the prompt of a paired turn to a prefill replica and count it there; `None` where none can
        take it, and decode has to compute it. `failed`: those that failed it already."""
        turn, model = ticket.turn, ticket.model
        pairing = ticket.decision.pair
        assert pairing is not None
        member = self._members.get(pairing.prefill)
        if failed or member is None or not member.takes_turns():
            pairing = self._pair(turn, now, plan, model, failed)
            if pairing is None:
                return None
            member = self._members[pairing.prefill]
        claim = None
        if pairing.pull is not None and turn.session is not None:
            claim = self.pairs.claims.take(model.key(turn.session), now)
        leg = Leg(self, ticket, pairing, member, claim, len(failed), now)
        if claim is not None:
            whole_s = member.learned.curve.seconds(pairing.prompt_tokens, pairing.prompt_tokens)
            leg.patience_s = self._plans[plan].pair.deadline_s + member.wait_s(now) + whole_s
            leg.sharing = self.pairs.transfers.begin(claim.replica, member.id, now)
        member.take(leg, pairing.prompt_tokens, pairing.prompt_tokens, leg.missing, now)
        return leg

    def leg_ended(self, leg: Leg, outcome: Outcome, now: float, usage: Usage | None) -> None:
        """The prefill of a paired turn is over. For the leg to call."""
        ticket, member, pairing = leg.ticket, leg.member, leg.pairing
        turn = ticket.turn
        if leg.of_this_life:
            member.in_flight -= 1
            member.kv_tokens -= pairing.prompt_tokens
        there = leg.of_this_life and self._members.get(member.id) is member
        pull = pairing.pull
        pulled: Pulled | None = None
        if outcome is Outcome.COMPLETED and there:
            hashes, ends = turn.chain.hashes, turn.chain.ends
            self._index.touch(member.shelf, hashes, ends)
            if member.failing or not member.well:
                self._health(member, TurnSucceeded(), now)
            if usage is not None and usage.prompt_tokens is not None and usage.cached_tokens is not None:
                chosen = next(c for c in pairing.candidates if c.replica == member.id)
                if not leg.claim_used:
                    member.learned.first_token(
                        usage.prompt_tokens,
                        usage.cached_tokens,
                        0.0,
                        max(chosen.wait_s, chosen.slot_s),
                        now - leg.began,
                        now,
                        shared=bool(chosen.in_flight or chosen.foreign),
                    )
                elif pull is not None:
                    pulled = self._fetched(
                        leg, chosen, pull.tokens, usage.prompt_tokens, usage.cached_tokens, now
                    )
        elif outcome in FAILURES and not (leg.claim_used and outcome in _DECLINED):
            self._blame(member, leg.epoch, outcome, leg.attempt, now)
        if leg.sharing and pull is not None:
            transfers = self.pairs.transfers
            transfers.end(pull.source, member.id, leg.sharing, pulled, now)
            if leg.claim_used and outcome in _DECLINED:
                transfers.result(pull.source, False, now)
        if leg.claim is not None and not leg.claim_used and turn.session is not None:
            self.pairs.claims.restore(ticket.model.key(turn.session), leg.claim)
        if outcome is Outcome.COMPLETED:
            self.pairs.ends[PairEnd.PULLED if leg.claim_used else PairEnd.ONE_WAY] += 1
        if self._observer is not None:
            prefilled = Prefilled(
                turn,
                ticket.decision,
                member.id,
                leg.number,
                pairing.prompt_tokens,
                pairing.cached_tokens,
                pull.source if pull is not None and leg.claim_used else None,
                outcome,
                usage,
                now - leg.began,
                now,
            )
            self._tell(lambda o: o.on_prefilled(prefilled))

    def _fetched(
        self, leg: Leg, chosen: Candidate, wanted: int, prompt_tokens: int, cached_tokens: int, now: float
    ) -> Pulled:
        """How the fetch of a leg went, by what the replica reports and how long it took."""
        came = max(0, cached_tokens - chosen.cached_tokens)
        curve = leg.member.learned.curve
        rest_s = chosen.wait_s + curve.seconds(max(1, prompt_tokens - cached_tokens), prompt_tokens)
        size = int(came * self.pairs.transfers.token_bytes)
        return Pulled(came, size, max(LEAST_FETCH_S, now - leg.began - rest_s), came >= CAME * wanted)

    def pair_rules(self, plan: int) -> PairRules:
        """How pairs work under a policy."""
        return self._plans[plan].pair

    def block_tokens(self, replica: ReplicaId) -> int | None:
        """Tokens of a KV block there; `None` where it has not told."""
        member = self._members.get(replica)
        return member.report.block_tokens if member is not None and member.report is not None else None

    def release_by(self, model: str) -> ReplicaId | None:
        """The prefill replica that has least to do, of those that can tell a decode replica to let go of
        what it holds of a model; `None` where there is none."""
        able = [
            member
            for member in self._prefills
            if member.spec.two_way
            and member.takes_turns()
            and (member.models is None or model in member.models)
        ]
        return min(able, key=lambda member: (member.in_flight, member.id)).id if able else None

    def claimable(self, ticket: Ticket, now: float) -> float | None:
        """Until when what the ticket's replica offers may be fetched; `None` where nobody could do so."""
        turn = ticket.turn
        if not self._two_way or turn.session is None or turn.last or not self._still_has(ticket):
            return None
        return now + self._plans[0].pair.ttl_s

    def _failed(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        """Hold a failure against the replica that had the turn, where it is the replica's."""
        self._blame(ticket.member, ticket.epoch, outcome, ticket.decision.attempt, now)

    def _blame(self, member: Member, epoch: int, outcome: Outcome, attempt: int, now: float) -> None:
        if member.epoch != epoch or self._members.get(member.id) is not member:
            return
        if outcome is Outcome.SERVER_ERROR and attempt:
            # Another replica failed this very turn. One prompt that no engine can serve counts once, or it
            # would speak against each replica that it was tried on.
            return
        member.failing = True
        decisive = outcome is Outcome.CONNECT_FAILED or outcome is Outcome.DIED
        if decisive:
            member.lost = True
        spared = not decisive and not self._can_spare(member)
        self._health(member, TurnFailed(outcome.value.replace("_", " "), decisive, spared), now)

    def _can_spare(self, member: Member) -> bool:
        """Whether half of the replicas that serve what it serves would take turns without it.

        Failed turns may be the clients' doing: they never take out more of the fleet than that.
        """
        peers = [other for other in self._ordered if other.shares_a_model_with(member)]
        others = sum(other.takes_turns() for other in peers if other is not member)
        return 2 * others >= len(peers)

    def _still_has(self, ticket: Ticket) -> bool:
        """Whether the replica that was given the turn is still in the fleet, in the same life."""
        member = ticket.member
        return ticket.of_this_life and self._members.get(member.id) is member

    def _delivered(self, ticket: Ticket, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Hold what was believed of a replica's cache, and of its speed, against what it reports."""
        if not self._still_has(ticket):
            return
        turn, decision = ticket.turn, ticket.decision
        alone = decision.pull is None and decision.pair is None
        whole = turn.stream and turn.computes and not decision.attempt and alone
        if whole and ticket.ttft_s is not None:
            chosen = decision.chosen
            ticket.member.learned.first_token(
                prompt_tokens,
                cached_tokens,
                min(chosen.host_tokens, cached_tokens),
                max(chosen.wait_s, chosen.slot_s),
                ticket.ttft_s,
                now,
                shared=bool(chosen.in_flight or chosen.foreign),
            )
        if self._pulling is not None:
            self._pulling.delivered(ticket, prompt_tokens, cached_tokens, now)
        if not ticket.depth:
            return
        ends = ticket.turn.chain.ends
        # By the prompt's own length, so that the ratio's error is no part of it.
        believed = prompt_tokens * ends[ticket.depth - 1] / ends[-1] if ends[-1] else 0.0
        if ticket.member.delivery.observe(believed, cached_tokens):
            self._resize(ticket.member)

    def _model(self, name: str) -> Model:
        """What is known of a model, or one of which nothing is; asking for it is not learning of it."""
        return self._models.get(name) or Model(name)

    # --- facts about replicas -----------------------------------------------------------------------

    def set_replicas(
        self, specs: Iterable[ReplicaSpec], now: float, leaving: Container[ReplicaId] = ()
    ) -> None:
        """Make the fleet exactly these. Those that stay keep everything; one whose URL changed is new.

        Those that are `leaving` are given no further turns, and own no sessions on the ring. Turns in flight
        on a removed replica end as they would have.
        """
        wanted = {spec.id: spec for spec in specs}
        for replica, member in tuple(self._members.items()):
            spec = wanted.get(replica)
            if spec is None or spec.url != member.spec.url:
                self._close_shelves(member)
                if self._pulling is not None:
                    # One whose URL changed keeps its name.
                    self._pulling.book.forget(replica)
                self.pairs.forget(replica)
                self._sessions.forget_replica(replica)
                del self._members[replica]
            else:
                member.configure(spec)
                self._resize(member)
        for replica, spec in wanted.items():
            if replica not in self._members:
                epoch = next(self._epochs)
                working_set = self._sessions.working_set(replica, epoch)
                learned = Learned(self._plans[0].prefill_tokens_per_s)
                member = Member(spec, self._index.open_shelf(None), epoch, working_set, learned)
                member.placed_at = now
                self._members[replica] = member
                self._resize(member)
        for member in self._members.values():
            member.leaving = member.id in leaving
            member.settle()
        served = {(member.cards[0].id, member.spec.role) for member in self._members.values() if member.cards}
        self._prefill_curves = {key: curve for key, curve in self._prefill_curves.items() if key in served}
        self._ordered = tuple(self._members[replica] for replica in sorted(self._members))
        self._set_roles()
        self._ready.clear()
        self._count_followed()
        if self._pulling is not None:
            self._pulling.set_fleet(self._ordered)
        self._set_rings()

    def _set_roles(self) -> None:
        self._prefills = tuple(member for member in self._ordered if member.spec.role is Role.PREFILL)
        self._answering = tuple(member for member in self._ordered if member.spec.role is not Role.PREFILL)
        self._two_way = frozenset(member.id for member in self._prefills if member.spec.two_way)
        self._decodes = frozenset(member.id for member in self._ordered if member.spec.role is Role.DECODE)
        self._prefill_ring = Ring(member.id for member in self._prefills)

    def _set_rings(self) -> None:
        names = tuple(member.id for member in self._answering if not member.leaving)
        self._rings = {plan.vnodes: Ring(names, plan.vnodes) for plan in self._plans}

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        """Its health endpoint answered well. Unknown replicas are ignored: a probe may outlive one."""
        member = self._members.get(replica)
        if member is None:
            return
        member.looked_at()
        needed = member.health.state is State.DOWN and not any(
            other.takes_turns() and other.shares_a_model_with(member) for other in self._ordered
        )
        self._health(member, ProbePassed(needed), now)
        if member.lost and member.health.state is not State.DOWN:
            member.lost = False
            if member.report is None or member.report.start_time is None:
                # Nothing else would tell that this is another process than the one that was gone.
                self._restarted(member, now)

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        """Its health endpoint did not; `why` in words."""
        if (member := self._members.get(replica)) is not None:
            member.looked_at()
            self._health(member, ProbeFailed(why), now)

    def report(self, replica: ReplicaId, report: Report, now: float) -> None:
        """One look at its metrics. A start time that moved means a new process, which is cold."""
        member = self._members.get(replica)
        if member is None:
            return
        before = member.report.start_time if member.report is not None else None
        if report.start_time is None:
            report = report._replace(start_time=before)
        elif before is not None and abs(report.start_time - before) > SAME_START_S:
            self._restarted(member, now)
        member.note(report, now)
        if member.id in self._decodes and report.kv_usage is not None:
            rules = self._plans[0].pair
            if report.kv_usage > rules.kv_usage:
                self.pairs.claims.shed(member.id)
        self._resize(member)

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], _now: float) -> None:
        """What it serves, adapters included."""
        if (member := self._members.get(replica)) is not None:
            member.cards = cards
            member.models = frozenset(card.id for card in cards)
            self._learn_together(member)
            self._ready.clear()

    def _learn_together(self, member: Member) -> None:
        """With those that serve the same base model, which a replica lists first, in the same role."""
        if member.cards:
            key = (member.cards[0].id, member.spec.role)
            prefill = self._prefill_curves.get(key)
            if prefill is None:
                prefill = PrefillCurve(self._plans[0].prefill_tokens_per_s)
                self._prefill_curves[key] = prefill
            member.learned.share(prefill)

    def agent_reported(self, name: ReplicaId, report: AgentReport, _now: float) -> None:
        """A replica's KV agent, or a pool, is there and says what it holds."""
        if self._holdings is None or self._pulling is None:
            return
        self._pulling.agent_reported(name, report)
        if (member := self._members.get(name)) is not None and member.agent_tokens != report.capacity_tokens:
            member.has_agent_for(report.capacity_tokens)
            self._resize(member)

    def agent_lost(self, name: ReplicaId, restarted: bool, _now: float) -> None:
        """It does not answer, or is another process now, which holds nothing."""
        if self._holdings is None or self._pulling is None:
            return
        self._pulling.agent_lost(name, restarted)
        member = self._members.get(name)
        if restarted and member is not None and member.agent_tokens is not None:
            member.has_agent_for(None)
            self._drop_reach(member)
            self._resize(member)

    def drain(self, replica: ReplicaId, on: bool) -> None:
        """Give it no more turns, or give it turns again. Raises `KeyError` if it is unknown."""
        member = self._members[replica]
        member.drained = on
        member.settle()
        self._ready.clear()

    def follow(self, replica: ReplicaId, residency: Residency | None) -> None:
        """Go by what a replica's events say of its cache, kept up to date by whoever calls; `None` = no
        longer, bookkeeping goes on. Unknown replicas are ignored."""
        if (member := self._members.get(replica)) is not None:
            member.residency = residency
            self._count_followed()

    def cache_cleared(self, replica: ReplicaId) -> None:
        """Its cache is empty, though its process is the same."""
        if (member := self._members.get(replica)) is not None:
            self._close_shelves(member)
            member.shelf = member.reach = self._index.open_shelf(None)
            self._resize(member)

    def _count_followed(self) -> None:
        self._followed = sum(member.residency is not None for member in self._members.values())

    def end_session(self, key: SessionKey) -> list[Session]:
        """Forget a session, with every model it used or, by the longer key that `sessions` shows, with one.
        Returns what was known of it, for each model: nothing if there was none."""
        self.pairs.claims.end_sessions(lambda mine: key in (mine, Model.session_of(mine)))
        one = self._sessions.forget(key)
        return [one] if one is not None else self._sessions.forget_all(key, Model.session_of)

    def holders(self, session: SessionKey) -> tuple[ReplicaId, ...]:
        """The KV agents and pools that say they hold KV of a session, by the key that goes upstream."""
        return self._holdings.holders(session) if self._holdings is not None else ()

    def _restarted(self, member: Member, now: float) -> None:
        epoch = next(self._epochs)
        self._close_shelves(member)
        if self._pulling is not None:
            self._pulling.book.forget(member.id)
        self.pairs.forget(member.id)
        self._sessions.forget_replica(member.id)
        member.begin_again(
            epoch,
            self._index.open_shelf(None),
            self._sessions.working_set(member.id, epoch),
            Learned(self._plans[0].prefill_tokens_per_s),
        )
        self._learn_together(member)
        self._count_followed()
        self._resize(member)
        self._health(member, Restarted(), now)
        if self._observer is not None:
            replica = member.id
            self._tell(lambda o: o.on_restarted(replica, now))

    def _resize(self, member: Member) -> None:
        """Let its shelves hold as many bytes as its KV holds tokens: of its base model, which it lists first,
        or of the first of its models that anything is known of.

        The shelf of what it reaches holds what device and host hold together: what the device gives up goes
        to the host, and so both are one order of last use, cut at two places.
        """
        capacity = member.capacity_tokens or _UNKNOWN_CAPACITY_TOKENS
        model = next((card.id for card in member.cards if card.id in self._models), "")
        tokens_per_byte = self._model(model).ratio.value
        share = member.delivery.share
        reach = member.reach_tokens
        if reach is not None and reach <= capacity:
            self._drop_reach(member)
        if reach is None or reach <= capacity:
            # One that has not told for once keeps what is believed of its host.
            near = 1.0 if member.reach != member.shelf else share
            self._index.resize(member.shelf, capacity * near / tokens_per_byte)
            return
        if member.reach == member.shelf:
            member.reach = self._index.open_shelf(None)
            self._index.load(member.reach, self._index.dump(member.shelf))
        self._index.resize(member.shelf, capacity / tokens_per_byte)
        self._index.resize(member.reach, reach * share / tokens_per_byte)

    def _drop_reach(self, member: Member) -> None:
        """Its host holds nothing."""
        if member.reach != member.shelf:
            self._index.close_shelf(member.reach)
            member.reach = member.shelf

    def _close_shelves(self, member: Member) -> None:
        self._drop_reach(member)
        self._index.close_shelf(member.shelf)

    # --- memory -------------------------------------------------------------------------------------

    def memory(self, now: float) -> Memory:
        """What is known that cannot be asked for again. Takes some tenths of a second for a large fleet."""
        index = self._index
        return Memory(
            tuple(
                ReplicaMemory(
                    member.id,
                    member.spec.url,
                    member.report.start_time if member.report is not None else None,
                    member.epoch,
                    member.drained,
                    index.dump(member.shelf),
                    index.dump(member.reach) if member.reach != member.shelf else None,
                )
                for member in self._ordered
            ),
            tuple(
                SessionMemory(
                    session.key,
                    session.model,
                    session.tenant,
                    session.home,
                    session.home_epoch,
                    session.resident_tokens,
                    session.tail,
                    session.reply_tokens,
                    session.turns,
                    session.moves,
                    now - session.created_at,
                    now - session.last_turn_at,
                    session.source,
                )
                for session in self._sessions
            ),
            tuple(
                ResponseMemory(response_id, tenant, *stored)
                for response_id, tenant, stored in self._responses
            ),
            tuple((name, model.ratio.value) for name, model in self._models.items()),
        )

    def recall(self, memory: Memory, now: float, passed_s: float) -> dict[ReplicaId, str]:
        """Take in what an engine knew `passed_s` seconds ago, for an engine that has had no turn yet.

        It is held against what the replicas have reported since: only what concerns a replica that is the
        same process is taken. Answers for each replica of the memory why it is cold, or "" where it is warm.
        """
        for name, ratio in memory.ratios:
            self._models.setdefault(name, Model(name, ratio))
        verdicts: dict[ReplicaId, str] = {}
        warm: list[tuple[ReplicaMemory, int]] = []
        for kept in memory.replicas:
            member = self._members.get(kept.id)
            if member is None:
                verdicts[kept.id] = "is not in the fleet"
                continue
            if kept.drained:
                self.drain(kept.id, True)
            started = member.report.start_time if member.report is not None else None
            verdicts[kept.id] = why_cold(kept, member.spec.url, started)
            if not verdicts[kept.id]:
                warm.append((kept, member.epoch))
                self._resize(member)
                self._index.load(member.shelf, kept.shelf)
                if member.reach != member.shelf:
                    self._index.load(member.reach, kept.reach if kept.reach is not None else kept.shelf)
        epochs = lives(warm)
        for session in memory.sessions:
            epoch = epochs.get((session.home, session.home_epoch))
            if epoch is None:
                continue
            created, last = now - session.age_s - passed_s, now - session.idle_s - passed_s
            fields = session._asdict()
            del fields["age_s"], fields["idle_s"]
            fields["home_epoch"] = epoch
            self._sessions.restore(Session(**fields, created_at=created, last_turn_at=last), now)
        for response in memory.responses:
            epoch = epochs.get((response.replica, response.epoch))
            if epoch is not None:
                stored = Stored(response.replica, epoch, response.session, response.model, response.tail)
                self._responses.keep(response.tenant, response.id, stored)
        return verdicts

    # --- for an engine beside this one --------------------------------------------------------------

    def start_time(self, replica: ReplicaId) -> float | None:
        """When the replica's process began, in Unix seconds; `None` where it does not tell or is unknown."""
        member = self._members.get(replica)
        return member.report.start_time if member is not None and member.report is not None else None

    def hear_turn(self, heard: HeardTurn, now: float) -> bool:
        """Another engine's turn has been answered: take it for known as if it had been one of ours.

        False, and nothing changes, where the replica is unknown here, or is another process here than there.
        What the turn says of speed, tokens a byte and health stays its own engine's.
        """
        member = self._heard_of(heard.replica, heard.start_time)
        if member is None:
            return False
        if heard.hashes:
            self._index.touch(member.shelf, heard.hashes, heard.ends)
            if member.reach != member.shelf:
                self._index.touch(member.reach, heard.hashes, heard.ends)
        if heard.session is None:
            return True
        key = self._model(heard.model).key(heard.session)
        if heard.last:
            self._sessions.forget(key)
            return True
        self._sessions.bind(
            key,
            home=member.id,
            epoch=member.epoch,
            resident_tokens=heard.prompt_tokens + heard.reply_tokens,
            tail=heard.hashes[-1] if heard.hashes else 0,
            reply_tokens=heard.reply_tokens,
            model=heard.model,
            tenant=heard.tenant,
            source=heard.source,
            now=now,
        )
        return True

    def hear_response(self, heard: HeardResponse) -> bool:
        """Another engine knows where a response is stored. False where the replica is unknown here, or is
        another process here than there."""
        member = self._heard_of(heard.replica, heard.start_time)
        if member is None:
            return False
        stored = Stored(member.id, member.epoch, heard.session, heard.model, heard.tail)
        self._responses.keep(heard.tenant, heard.id, stored)
        return True

    def _heard_of(self, replica: ReplicaId, start_time: float | None) -> Member | None:
        """The replica that another engine means; `None` if it is not the one that is known here."""
        ours = self.start_time(replica)
        if (ours is None) is not (start_time is None):
            return None
        if ours is not None and start_time is not None and abs(ours - start_time) > SAME_START_S:
            return None
        return self._members.get(replica)

    def lend(self, replica: ReplicaId) -> Lent | None:
        """What was learned of a replica, and how much of its load is others'; `None` if it is unknown."""
        member = self._members.get(replica)
        return Lent(member.learned, member.delivery, member.foreign) if member is not None else None

    def borrow(self, replica: ReplicaId, lent: Lent) -> None:
        """See a replica as another engine does, until its process is another one. For an engine whose turns
        teach it nothing."""
        if (member := self._members.get(replica)) is not None:
            member.learned, member.delivery, member.foreign = lent
            self._resize(member)

    # --- for people ---------------------------------------------------------------------------------

    def replica_ids(self) -> tuple[ReplicaId, ...]:
        """The fleet, by name."""
        return tuple(member.id for member in self._ordered)

    def spec(self, replica: ReplicaId) -> ReplicaSpec:
        """Its configuration. Raises `KeyError` if it is unknown."""
        return self._members[replica].spec

    def model_cards(self) -> dict[str, ModelCard]:
        """The union of what healthy replicas serve, the first card of each id."""
        cards: dict[str, ModelCard] = {}
        for member in self._ordered:
            if member.health.state in (State.HEALTHY, State.PROBATION):
                for card in member.cards:
                    cards.setdefault(card.id, card)
        return cards

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]:
        """A copy of what is known of every replica."""
        return tuple(member.status(now, self._index.segments(member.shelf)) for member in self._ordered)

    def sessions(self, limit: int) -> list[Session]:
        """The sessions with the latest turns, newest first."""
        return self._sessions.recent(limit)

    def sessions_of(self, key: SessionKey) -> list[Session]:
        """Those that a key names: by the longer key that `sessions` shows, one; by a session's own, one for
        each model that it used."""
        table = self._sessions
        keys = [key, *(model.key(key) for model in self._models.values())]
        return [session for each in keys if (session := table.find(each)) is not None]

    def session_count(self) -> int:
        """Sessions in the table, those included that have been idle for too long and are not dropped yet."""
        return len(self._sessions)

    def whereabouts(self, key: SessionKey) -> list[Resident]:
        """What lies of a session where, as far as replicas and agents say; the most first. By either key."""
        own = SessionKey(key[:OWN_DIGITS])
        found = [
            Resident(replica, tokens, "events") for replica, tokens in _resident(own, self._ordered).items()
        ]
        holdings = self._holdings
        if holdings is not None:
            for place in (*self._members, *holdings.pools):
                tokens = holdings.tokens(place, own)
                if tokens:
                    found.append(Resident(place, tokens, "agent"))
        return sorted(found, key=lambda each: (-each.tokens, each.place))

    def held_turns(self, limit: int) -> list[Held]:
        """The turns that wait, those first that have waited longest."""
        return self._waiting.longest_held(limit)

    def has_turns(self, replica: ReplicaId) -> bool:
        """Whether turns run there. None do on one that is unknown."""
        member = self._members.get(replica)
        return member is not None and member.in_flight > 0

    def in_flight(self) -> int:
        """Turns of the whole fleet."""
        return sum(member.in_flight for member in self._ordered)

    # --- observing ----------------------------------------------------------------------------------

    def _health(self, member: Member, event: Event, now: float) -> None:
        """Feed one event to a replica's health, and tell of what it changed."""
        transitions = member.observe(event, now)
        if transitions:
            self._ready.clear()
        for before, after, why in transitions:
            change = HealthChange(member.id, before.value, after.value, why, now)
            self._tell(lambda o, change=change: o.on_health(change))  # type: ignore[misc] # bound per turn of the loop

    def _tell(self, say: Callable[[Observer], None]) -> None:
        if self._observer is None:
            return
        try:
            say(self._observer)
        except Exception as error:  # noqa: BLE001 - an observer must never stop routing
            self._detach(error)

    def _detach(self, error: Exception) -> None:
        self._observer = None
        if self._on_detach is not None:
            self._on_detach(error)


def _resident(session: SessionKey, members: Iterable[Member]) -> dict[ReplicaId, int]:
    """What lies of a session where, as far as replicas' own events say."""
    found = {}
    for member in members:
        if member.residency is not None:
            tokens = member.residency.tokens(session)
            if tokens is not None:
                found[member.id] = tokens
    return found


def _elsewhere(known: Mapping[ReplicaId, int], home: ReplicaId | None, at_home: int) -> ReplicaId | None:
    """Who holds more of a session than its home does; `None` = home it is.

    Another router gave it its last turns, or what we had at home is evicted. `at_home` counts where home's
    own events do not say.
    """
    if not known:
        return None
    best = max(known, key=lambda replica: (known[replica], replica == home))
    most = known.get(home, at_home) if home is not None else 0
    return best if best != home and known[best] > most else None
