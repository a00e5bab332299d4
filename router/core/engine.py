"""The engine: what is known of fleet, sessions and prefixes, and the parts that turn it into decisions.

Everything it learns arrives as a method call with the time; everything it does is an answer. It opens no
socket, reads no clock and keeps no task, so the proxy, the tests and the simulator run the same one.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from heapq import heappush
from itertools import count
from random import Random

from router.base.errors import Refused
from router.base.ids import ReplicaId, SessionKey, TenantId
from router.core.conditions import Conditions
from router.core.continuing import Continuing
from router.core.decide import Decision, Kind
from router.core.deciding import Deciding
from router.core.eligible import Eligible
from router.core.fleet import ModelCard, ReplicaSpec, ReplicaStatus, Report, Resident
from router.core.health import State
from router.core.hearing import Hearing
from router.core.holdings import AgentReport, Holdings
from router.core.legs import Legs
from router.core.lives import Lives
from router.core.member import Lent, Member
from router.core.members import Members
from router.core.model import Model, Models
from router.core.observe import Outcome, WaitEnd
from router.core.observer import Observer
from router.core.pairbook import PairBook
from router.core.plan import Plan
from router.core.policies import Policies
from router.core.prefix import PrefixIndex
from router.core.pullbook import PullBook, Pulled
from router.core.pulling import Pulling
from router.core.queue import Chosen, Held
from router.core.recollection import Recollection
from router.core.request import Turn
from router.core.residency import Residency
from router.core.session import Session, SessionTable
from router.core.settling import Settling
from router.core.shelves import Shelves
from router.core.stored import Stored, StoredResponses
from router.core.teller import Teller
from router.core.ticket import Ticket
from router.core.upkeep import Upkeep
from router.core.views import Views
from router.core.waiting import Desk, Rank, Waiting
from router.core.whereabouts import whereabouts


class Engine(Desk):
    """Decides for every turn, and keeps the books. Single-threaded; no method awaits.

    `plans[0]` is the default policy; `admit` and `decide` take the index of the one in force for a turn.
    `on_detach` is told of an observer that raised and is therefore detached. Without a `pullbook` no KV is
    pulled: whoever gives one carries out the pulls that decisions name. With `holdings` of which agents tell,
    a KV agent has to be heard of before anything is pulled from it or by it; else every agent is taken to be
    there, and to hold what its replica is believed to. `on_stored` is told of responses that replicas store,
    and must not raise.
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
        models: Models | None = None,
        responses: StoredResponses | None = None,
        pullbook: PullBook | None = None,
        holdings: Holdings | None = None,
        on_stored: Callable[[TenantId, str, Stored], None] | None = None,
    ) -> None:
        # What is known.
        self._policies = policies = Policies(plans)
        self._models = models = models if models is not None else Models()
        self._sessions = sessions = sessions if sessions is not None else SessionTable()
        self._shelves = shelves = Shelves(index if index is not None else PrefixIndex(), models)
        self._members = members = Members(policies.vnodes)
        responses = responses if responses is not None else StoredResponses()
        self._holdings = holdings
        self._pulling = pulling = Pulling(pullbook, holdings) if pullbook is not None else None
        """`None` where nothing is pulled."""
        self.pairs = pairs = PairBook(policies.default.pull)
        """What decode replicas offer, and what became of pairs."""
        self._teller = teller = Teller(observer, on_detach)

        # How a turn is decided on.
        self._eligible = eligible = Eligible(members, models.most)
        self._continuing = continuing = Continuing(responses, members, on_stored)
        views = Views(policies, members, sessions, shelves, continuing, pulling)
        conditions = Conditions(members, eligible, teller)
        self.legs = legs = Legs(policies, members, views, shelves, conditions, pairs, teller)
        """The prompts that prefill replicas compute."""
        self._deciding = Deciding(policies, members, eligible, views, continuing, legs, rng)
        self._waiting = Waiting(self)
        self._admitted = count()

        # What is learned, of turns, of replicas and of other engines.
        self._settling = Settling(members, sessions, shelves, conditions, pairs.claims, pulling, teller)
        lives = Lives(policies, sessions, shelves, pairs, pulling)
        self._upkeep = Upkeep(policies, members, eligible, lives, shelves, conditions, pairs, pulling, teller)
        self.hearing = Hearing(members, models, sessions, shelves, responses)
        """For engines that serve the same clients."""
        self.recollection = Recollection(members, models, sessions, shelves, responses, self._upkeep)
        """For the engine after this one, and from the one before it."""
        self._go_by_policies()

    # --- policies -----------------------------------------------------------------------------------

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The policies in force, the default first."""
        return self._policies.in_force

    def set_plans(self, plans: Sequence[Plan]) -> None:
        """Put these policies in force, all at once; `plans[0]` is the default. Raises `ValueError` for none.

        A turn that is under way goes by the place of its policy: under what stands there now, or under the
        default where nothing does.
        """
        self._policies.replace(plans)
        self._members.set_rings(self._policies.vnodes)
        self._go_by_policies()

    def _go_by_policies(self) -> None:
        self._sessions.idle_s = self._policies.idle_s
        if self._pulling is not None:
            self._pulling.follow(self._policies.default.pull)

    def plan_of(self, policy: str) -> int:
        """The index of the policy of a name; the default's if it is in force no longer."""
        return self._policies.place_of(policy)

    def may_retry(self, outcomes: Sequence[Outcome], now: float, *, plan: int = 0) -> bool:
        """Whether a turn whose attempts ended so may be tried on another replica. Draws on the budget."""
        return self._policies.may_retry(outcomes, now, plan)

    # --- deciding -----------------------------------------------------------------------------------

    def decide(self, turn: Turn, now: float, *, plan: int = 0) -> Decision:
        """What `admit` would choose, without counting anything. Raises `Refused`.

        Draws from a copy of the random source, so that asking does not change what comes next.
        """
        turn, name = self._continuing.resume(turn)
        return self._deciding.ask(turn, now, plan, self._models.of(name))

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
        turn, name = self._continuing.resume(turn)
        # One that is not known is learned of once a replica has a turn for it: not from what is refused.
        model = self._models.of(name)
        try:
            decision, member, depth = chosen or self._deciding.decide(turn, now, plan, failed, model)
        except Refused as refusal:
            if not failed:
                # A turn that some replica had and failed is counted there: it was not refused.
                self.tell_refused(turn, refusal, now)
            raise
        self._models.used(name, model)
        self._policies.served[plan] += 1
        ticket = Ticket(self._settling, turn, decision, member, model, depth)
        if decision.pull is not None and self._pulling is not None:
            self._pulling.began(ticket, now)
        missing = ticket.missing
        member.take(ticket, decision.prompt_tokens, ticket.kv_tokens, missing, now)
        if member.reach != member.shelf:
            there = decision.chosen
            if there.host_tokens:
                member.reloads(ticket, there.host_tokens * there.curve.reload_s, there.slot_s, now)
        if missing and not turn.stream:
            # The answer's first byte comes after all decoding, so it says nothing of prefill.
            heappush(member.due, (now + member.wait_s(now), next(self._admitted), ticket))
        if decision.kind is Kind.NEW:
            member.placed_at = now
        self._teller.decided(turn, decision)
        return ticket

    def pulled(self, ticket: Ticket, pulled: Pulled, now: float) -> None:
        """How the pull that a turn was sent with ended. Nothing happens where that is known already."""
        if self._pulling is not None:
            self._pulling.ended(ticket, pulled, now)

    def stored(self, tenant: TenantId, response_id: str, ticket: Ticket) -> None:
        """A response with this id is stored on the ticket's replica: later references are pinned there.

        May be called again."""
        self._continuing.stored(tenant, response_id, ticket)

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
        rules = self._policies.plan(plan).queue
        if rules is None or not turn.computes or not turn.chain.hashes:
            return self.admit(turn, now, plan=plan)
        turn = self._continuing.resume(turn)[0]
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

    # As the desk of `Waiting`, which alone calls these:

    def choose(self, turn: Turn, now: float, plan: int, rank: Rank) -> Chosen:
        """Where a turn that may wait would go, as things are. Raises `Refused`."""
        name = self._continuing.resume(turn)[1]
        return self._deciding.decide(turn, now, plan, (), self._models.of(name), rank)

    def is_open(self, member: Member) -> bool:
        """Whether it is in the fleet and given turns."""
        return self._members.is_open(member)

    def has_idle(self) -> bool:
        """Whether a replica that is given turns has nothing to prefill, and none that wait for it."""
        return self._members.has_idle()

    def may_pull(self, decision: Decision, now: float) -> bool:
        """Whether the pull that it was made with may begin, or what it waits for is still on its way."""
        return self._pulling is not None and self._pulling.may_begin(decision, now)

    def tell_waited(self, turn: Turn, waited_s: float, end: WaitEnd) -> None:
        """A turn waits no longer."""
        self._teller.tell(lambda o: o.on_waited(turn, waited_s, end))

    def tell_refused(self, turn: Turn, refusal: Refused, now: float) -> None:
        """No replica gets a turn, and none had it."""
        kind, message = refusal.kind, refusal.message
        self._teller.tell(lambda o: o.on_refused(turn, kind, message, now))

    # --- facts about replicas -----------------------------------------------------------------------

    def set_replicas(
        self, specs: Iterable[ReplicaSpec], now: float, leaving: Container[ReplicaId] = ()
    ) -> None:
        """Make the fleet exactly these. Those that stay keep everything; one whose URL changed is new.

        Those that are `leaving` are given no further turns, and own no sessions on the ring. Turns in flight
        on a removed replica end as they would have.
        """
        self._upkeep.set_replicas(specs, now, leaving)

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        """Its health endpoint answered well. Unknown replicas are ignored: a probe may outlive one."""
        self._upkeep.probe_passed(replica, now)

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        """Its health endpoint did not; `why` in words."""
        self._upkeep.probe_failed(replica, why, now)

    def report(self, replica: ReplicaId, report: Report, now: float) -> None:
        """One look at its metrics. A start time that moved means a new process, which is cold."""
        self._upkeep.report(replica, report, now)

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...], _now: float) -> None:
        """What it serves, adapters included."""
        self._upkeep.models(replica, cards)

    def agent_reported(self, name: ReplicaId, report: AgentReport, _now: float) -> None:
        """A replica's KV agent, or a pool, is there and says what it holds."""
        self._upkeep.agent_reported(name, report)

    def agent_lost(self, name: ReplicaId, restarted: bool, _now: float) -> None:
        """It does not answer, or is another process now, which holds nothing."""
        self._upkeep.agent_lost(name, restarted)

    def drain(self, replica: ReplicaId, on: bool) -> None:
        """Give it no more turns, or give it turns again. Raises `KeyError` if it is unknown."""
        self._upkeep.drain(replica, on)

    def follow(self, replica: ReplicaId, residency: Residency | None) -> None:
        """Go by what a replica's events say of its cache, kept up to date by whoever calls; `None` = no
        longer, bookkeeping goes on. Unknown replicas are ignored."""
        self._upkeep.follow(replica, residency)

    def cache_cleared(self, replica: ReplicaId) -> None:
        """Its cache is empty, though its process is the same."""
        self._upkeep.cache_cleared(replica)

    def lend(self, replica: ReplicaId) -> Lent | None:
        """What was learned of a replica, and how much of its load is others'; `None` if it is unknown."""
        return self._upkeep.lend(replica)

    def borrow(self, replica: ReplicaId, lent: Lent) -> None:
        """See a replica as another engine does, until its process is another one. For an engine whose turns
        teach it nothing."""
        self._upkeep.borrow(replica, lent)

    # --- questions ----------------------------------------------------------------------------------

    def replica_ids(self) -> tuple[ReplicaId, ...]:
        """The fleet, by name."""
        return tuple(member.id for member in self._members.ordered)

    def spec(self, replica: ReplicaId) -> ReplicaSpec:
        """Its configuration. Raises `KeyError` if it is unknown."""
        return self._members[replica].spec

    def model_cards(self) -> dict[str, ModelCard]:
        """The union of what healthy replicas serve, the first card of each id."""
        cards: dict[str, ModelCard] = {}
        for member in self._members.ordered:
            if member.health.state in (State.HEALTHY, State.PROBATION):
                for card in member.cards:
                    cards.setdefault(card.id, card)
        return cards

    def replicas(self, now: float) -> tuple[ReplicaStatus, ...]:
        """A copy of what is known of every replica."""
        return tuple(member.status(now, self._shelves.segments(member)) for member in self._members.ordered)

    def has_turns(self, replica: ReplicaId) -> bool:
        """Whether turns run there. None do on one that is unknown."""
        member = self._members.get(replica)
        return member is not None and member.in_flight > 0

    def in_flight(self) -> int:
        """Turns of the whole fleet."""
        return sum(member.in_flight for member in self._members.ordered)

    def will_leave(self, replica: ReplicaId, *, plan: int = 0) -> bool:
        """Whether the sessions that live there will have their next turns elsewhere, as things are: it
        drains, or has less KV free than the plan wants, if it wants any."""
        member = self._members.get(replica)
        if member is None or member.draining or member.leaving:
            return True
        kv_usage = self._policies.plan(plan).overload.kv_usage
        return kv_usage is not None and member.kv_usage is not None and member.kv_usage > kv_usage

    def held_turns(self, limit: int) -> list[Held]:
        """The turns that wait, those first that have waited longest."""
        return self._waiting.longest_held(limit)

    def sessions(self, limit: int) -> list[Session]:
        """The sessions with the latest turns, newest first."""
        return self._sessions.recent(limit)

    def sessions_of(self, key: SessionKey) -> list[Session]:
        """Those that a key names: by the longer key that `sessions` shows, one; by a session's own, one for
        each model that it used."""
        keys = [key, *self._models.keys(key)]
        return [session for each in keys if (session := self._sessions.find(each)) is not None]

    def session_count(self) -> int:
        """Sessions in the table, those included that have been idle for too long and are not dropped yet."""
        return len(self._sessions)

    def end_session(self, key: SessionKey) -> list[Session]:
        """Forget a session, with every model it used or, by the longer key that `sessions` shows, with one.
        Returns what was known of it, for each model: nothing if there was none."""
        self.pairs.claims.end_sessions(lambda mine: key in (mine, Model.session_of(mine)))
        one = self._sessions.forget(key)
        return [one] if one is not None else self._sessions.forget_all(key, Model.session_of)

    def whereabouts(self, key: SessionKey) -> list[Resident]:
        """What lies of a session where, as far as replicas and agents say; the most first. By either key."""
        return whereabouts(key, self._members.values(), self._holdings)

    def holders(self, session: SessionKey) -> tuple[ReplicaId, ...]:
        """The KV agents and pools that say they hold KV of a session, by the key that goes upstream."""
        return self._holdings.holders(session) if self._holdings is not None else ()
