"""Keeps what is known of replicas true to what is heard of them.

That is: the configuration, probes, metrics, models, KV events and agents, an operator's word. What turns
teach is learned elsewhere (`settling`). What is heard of a replica that is unknown is ignored: it may outlive
one.
"""

from collections.abc import Container, Iterable

from router.base.ids import ReplicaId
from router.core.conditions import Conditions
from router.core.eligible import Eligible
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.health import ProbeFailed, Restarted, State
from router.core.holdings import AgentReport
from router.core.lives import Lives
from router.core.member import Lent, Member
from router.core.members import Members
from router.core.memory import SAME_START_S
from router.core.pairbook import PairBook
from router.core.policies import Policies
from router.core.pulling import Pulling
from router.core.residency import Residency
from router.core.shelves import Shelves
from router.core.teller import Teller


class Upkeep:
    """Of one fleet. `pulling` is `None` where nothing is pulled."""

    __slots__ = (
        "_conditions",
        "_eligible",
        "_lives",
        "_members",
        "_pairs",
        "_policies",
        "_pulling",
        "_shelves",
        "_teller",
    )

    def __init__(
        self,
        policies: Policies,
        members: Members,
        eligible: Eligible,
        lives: Lives,
        shelves: Shelves,
        conditions: Conditions,
        pairs: PairBook,
        pulling: Pulling | None,
        teller: Teller,
    ) -> None:
        self._policies = policies
        self._members = members
        self._eligible = eligible
        self._lives = lives
        self._shelves = shelves
        self._conditions = conditions
        self._pairs = pairs
        self._pulling = pulling
        self._teller = teller

    def set_replicas(self, specs: Iterable[ReplicaSpec], now: float, leaving: Container[ReplicaId]) -> None:
        """Make the fleet exactly these. Those that stay keep everything; one whose URL changed is new.

        Those that are `leaving` are given no further turns, and own no sessions on the ring. Turns in flight
        on a removed replica end as they would have.
        """
        wanted = {spec.id: spec for spec in specs}
        stay: dict[ReplicaId, Member] = {}
        for member in self._members.values():
            spec = wanted.get(member.id)
            if spec is None or spec.url != member.spec.url:
                self._lives.end(member)
            else:
                member.configure(spec)
                self._shelves.fit(member)
                stay[member.id] = member
        new = [self._lives.begin(spec, now) for spec in wanted.values() if spec.id not in stay]
        members = (*stay.values(), *new)
        for member in members:
            member.leaving = member.id in leaving
            member.settle()
        self._lives.keep_only(members)
        self._members.arrange(members)
        self._eligible.changed()
        if self._pulling is not None:
            self._pulling.set_fleet(self._members.ordered)

    # --- looks --------------------------------------------------------------------------------------

    def probe_passed(self, replica: ReplicaId, now: float) -> None:
        """Its health endpoint answered well."""
        member = self._members.get(replica)
        if member is None:
            return
        member.looked_at()
        self._conditions.probe_passed(member, now)
        if member.lost and member.health.state is not State.DOWN:
            member.lost = False
            if member.report is None or member.report.start_time is None:
                # Nothing else would tell that this is another process than the one that was gone.
                self._restarted(member, now)

    def probe_failed(self, replica: ReplicaId, why: str, now: float) -> None:
        """Its health endpoint did not; `why` in words."""
        if (member := self._members.get(replica)) is not None:
            member.looked_at()
            self._conditions.observe(member, ProbeFailed(why), now)

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
        for answering in member.answering:
            # What a turn that runs has is not evicted, however long ago it was looked up.
            chain = answering.turn.chain
            self._shelves.touch(member, chain.hashes, chain.ends)
        if member.id in self._members.decodes:
            self._make_room(member, report.kv_usage)
        self._shelves.fit(member)

    def _make_room(self, member: Member, kv_usage: float | None) -> None:
        """Let a decode replica's oldest claims go where its blocks run short."""
        short = 0.0
        if kv_usage is not None and (excess := kv_usage - self._policies.default.pair.kv_usage) > 0.0:
            # Of all its blocks, where it says how many: turns that come in a burst fill them quicker than one
            # claim a look lets go.
            short = max(1.0, excess * (member.capacity_tokens or 0))
        if member.line is not None and (free := member.free_tokens()) is not None:
            # What is kept for turns that may come must not hold up one that is here.
            short = max(short, member.line.first_prompt() - free)
        if short > 0.0:
            self._pairs.claims.shed(member.id, short)

    def models(self, replica: ReplicaId, cards: tuple[ModelCard, ...]) -> None:
        """What it serves, adapters included."""
        if (member := self._members.get(replica)) is not None:
            member.cards = cards
            member.models = frozenset(card.id for card in cards)
            self._lives.learn_together(member)
            self._eligible.changed()

    def _restarted(self, member: Member, now: float) -> None:
        self._lives.begin_again(member)
        self._members.count_followed()
        self._conditions.observe(member, Restarted(), now)
        if self._teller.observer is not None:
            replica = member.id
            self._teller.tell(lambda o: o.on_restarted(replica, now))

    # --- agents -------------------------------------------------------------------------------------

    def agent_reported(self, name: ReplicaId, report: AgentReport) -> None:
        """A replica's KV agent, or a pool, is there and says what it holds."""
        if self._pulling is None or self._pulling.holdings is None:
            return
        self._pulling.agent_reported(name, report)
        if (member := self._members.get(name)) is not None and member.agent_tokens != report.capacity_tokens:
            member.has_agent_for(report.capacity_tokens)
            self._shelves.fit(member)

    def agent_lost(self, name: ReplicaId, restarted: bool) -> None:
        """It does not answer, or is another process now, which holds nothing."""
        if self._pulling is None or self._pulling.holdings is None:
            return
        self._pulling.agent_lost(name, restarted)
        member = self._members.get(name)
        if restarted and member is not None and member.agent_tokens is not None:
            member.has_agent_for(None)
            self._shelves.drop_host(member)
            self._shelves.fit(member)

    # --- KV events ----------------------------------------------------------------------------------

    def follow(self, replica: ReplicaId, residency: Residency | None) -> None:
        """Go by what its events say of its cache, kept up to date by whoever calls; `None` = no longer,
        bookkeeping goes on."""
        if (member := self._members.get(replica)) is not None:
            member.residency = residency
            self._members.count_followed()

    def cache_cleared(self, replica: ReplicaId) -> None:
        """Its cache is empty, though its process is the same."""
        if (member := self._members.get(replica)) is not None:
            self._shelves.clear(member)

    # --- people, and a live engine ------------------------------------------------------------------

    def drain(self, replica: ReplicaId, on: bool) -> None:
        """Give it no more turns, or give it turns again. Raises `KeyError` if it is unknown."""
        member = self._members[replica]
        member.drained = on
        member.settle()
        self._eligible.changed()

    def lend(self, replica: ReplicaId) -> Lent | None:
        """What was learned of a replica, and how much of its load is others'; `None` if it is unknown."""
        member = self._members.get(replica)
        return Lent(member.learned, member.delivery, member.foreign) if member is not None else None

    def borrow(self, replica: ReplicaId, lent: Lent) -> None:
        """See a replica as another engine does, until its process is another one. For an engine whose turns
        teach it nothing."""
        if (member := self._members.get(replica)) is not None:
            member.learned, member.delivery, member.foreign = lent
            self._shelves.fit(member)
