"""Where the KV of a prompt can be pulled from: who holds it, what is on its way, and what pulls have taught.

The engine's. Keeps the pull book true to the turns: a pull begins with its ticket and ends with it, or when
whoever carried it out tells how it went.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from router.base.ids import ReplicaId
from router.core.decide import Decision, Flight, Pulls
from router.core.health import State
from router.core.holdings import AgentReport, Holdings
from router.core.member import Member
from router.core.plan import PullRules
from router.core.pullbook import PullBook, Pulled, pull_came
from router.core.request import Turn
from router.core.session import Session
from router.core.ticket import Ticket

# A fetch takes no less, whatever the times of what it was part of say.
LEAST_FETCH_S: Final = 0.001


class Pulling:
    """All pulls of one fleet. With `holdings` of which agents tell, a KV agent has to be heard of before
    anything is pulled from it or by it; else every agent is taken to be there, and to hold what its replica
    is believed to."""

    __slots__ = ("_agents", "_flying", "_heard", "_targets", "book", "holdings")

    def __init__(self, book: PullBook, holdings: Holdings | None) -> None:
        self.book = book
        self.holdings = holdings
        self._heard = holdings if holdings is not None and holdings.agents_tell else None
        """What agents say that they hold; `None` where nobody listens to them."""
        self._agents: tuple[Member, ...] = ()
        """Replicas that have a KV agent, or else those with vLLM's P2P tier: the one kind does not pull from
        the other."""
        self._flying: dict[Ticket, None] = {}
        """Turns that were sent with a pull and have no first token yet."""
        self._targets: frozenset[ReplicaId] = frozenset()
        """Who can pull."""

    def follow(self, rules: PullRules) -> None:
        """Go by other rules from now on."""
        self.book.follow(rules)

    # --- the fleet ----------------------------------------------------------------------------------

    def set_fleet(self, members: Iterable[Member]) -> None:
        """These are all replicas that there are."""
        ordered = tuple(members)
        agents = [member for member in ordered if member.spec.kv_agent is not None]
        self._agents = tuple(agents or [one for one in ordered if one.spec.kv_p2p is not None])
        pools = self.holdings.pools if self.holdings is not None else ()
        self.book.keep_only((*(member.id for member in ordered), *pools))
        self._set_targets()

    def agent_reported(self, name: ReplicaId, report: AgentReport) -> None:
        """A replica's KV agent, or a pool, is there and says what it holds."""
        if self.holdings is not None:
            self.holdings.report(name, report)
            self.book.told(name, report)
            self._set_targets()

    def agent_lost(self, name: ReplicaId, restarted: bool) -> None:
        """It does not answer, or is another process now, which holds nothing."""
        if self.holdings is None:
            return
        self.holdings.lost(name)
        self._set_targets()
        if restarted:
            # Otherwise its replica may reach it all the same; that shows in what the replica delivers.
            self.book.forget(name)

    def _set_targets(self) -> None:
        heard = self._heard
        self._targets = frozenset(
            [
                member.id
                for member in self._agents
                if heard is None or member.spec.kv_p2p is not None or heard.is_up(member.id)
            ]
        )

    # --- deciding -----------------------------------------------------------------------------------

    def view(
        self,
        turn: Turn,
        session: Session | None,
        ends: Sequence[int],
        ratio: float,
        depths: Mapping[int, int],
        now: float,
    ) -> Pulls | None:
        """Who holds how much of a prompt and would serve it, draining or not; `None` where there is nothing
        to pull. `ratio`: tokens a prompt byte. `depths`: leading segments by shelf."""
        if not self._agents:
            return None
        holdings, heard = self.holdings, self._heard
        held: list[tuple[ReplicaId, int]] = []
        for member in self._agents:
            depth = depths.get(member.reach, 0)
            if not depth:
                continue
            tokens = int(ends[depth - 1] * ratio * member.delivery.trust)
            if heard is None or member.spec.kv_p2p is not None:
                if member.health.state not in (State.HEALTHY, State.PROBATION):
                    continue
            elif not heard.is_up(member.id):
                continue
            elif (told := heard.tokens(member.id, turn.session)) is not None:
                tokens = min(tokens, told)
            elif session is not None and session.home == member.id:
                # All but its latest blocks would be named by now.
                continue
            else:
                # Other sessions' beginning, of which no more can be there than there is.
                tokens = min(tokens, heard.all_tokens(member.id))
            held.append((member.id, tokens))
        if holdings is not None and session is not None and session.tail in turn.chain.hashes:
            # A pool is known by what it says alone, which is of the session as it was.
            for pool in holdings.pools:
                if told := holdings.tokens(pool, turn.session):
                    held.append((pool, min(told, session.resident_tokens)))
        # While nobody knows what a path carries, one turn finds out, and no other waits for it.
        flights = self._flights(turn, ends, ratio, now) if self._flying and self.book.has_learned else {}
        return self.book.view(held, self._targets, now, flights) if held or flights else None

    def _flights(self, turn: Turn, ends: Sequence[int], ratio: float, now: float) -> dict[ReplicaId, Flight]:
        """What of a prompt is on its way to whom, for turns that were sent there with a pull."""
        flights: dict[ReplicaId, Flight] = {}
        for ticket in self._flying:
            decision, pull = ticket.decision, ticket.decision.pull
            depth = shared_depth(turn.chain.hashes, ticket.turn.chain.hashes)
            if not depth or pull is None or not ticket.of_this_life:
                continue
            tokens = min(int(ends[depth - 1] * ratio), decision.cached_tokens)
            before = flights.get(decision.replica)
            if before is None or before.cached_tokens < tokens:
                # What is late may be late for as long again.
                seconds = abs(decision.at + pull.seconds - now)
                flights[decision.replica] = Flight(pull.source, tokens, seconds, pull.chance)
        return flights

    def may_begin(self, decision: Decision, now: float) -> bool:
        """Whether the pull that a decision was made with may begin, or what it waits for is still on its
        way."""
        pull = decision.pull
        if pull is None:
            return False
        if pull.rides:
            return any(ticket.decision.replica == decision.replica for ticket in self._flying)
        return self.book.allows(pull.source, now)

    # --- turns --------------------------------------------------------------------------------------

    def began(self, ticket: Ticket, now: float) -> None:
        """A turn was given to a replica, which is to fetch what the decision says, if anything."""
        decision = ticket.decision
        pull = decision.pull
        if pull is not None and not pull.rides:
            ticket.pull_sharing = self.book.begin(pull.source, decision.replica, now)
            ticket.member.arriving_tokens += pull.tokens
            self._flying[ticket] = None

    def ended(self, ticket: Ticket, pulled: Pulled | None, now: float) -> None:
        """How its pull ended; `None` = nobody told. Nothing happens where that is known already."""
        pull = ticket.decision.pull
        if not ticket.pull_sharing or pull is None:
            return
        self.book.end(pull.source, ticket.decision.replica, ticket.pull_sharing, pulled, now)
        if ticket.of_this_life:
            ticket.member.arriving_tokens -= pull.tokens
        ticket.pull_sharing = 0

    def landed(self, ticket: Ticket, now: float) -> None:
        """Its first token is there, or it has ended."""
        self.ended(ticket, None, now)
        self._flying.pop(ticket, None)

    def delivered(self, ticket: Ticket, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """What its replica found in its cache."""
        decision = ticket.decision
        if decision.pull is None or self._heard is None:
            return
        # Nobody else tells how it went. A few blocks less may be the estimate's fault.
        self.book.result(decision.pull.source, pull_came(decision, cached_tokens), now)
        if ticket.member.spec.kv_p2p is not None:
            self._learn_path(ticket, decision.pull.source, prompt_tokens, cached_tokens)

    def _learn_path(self, ticket: Ticket, source: ReplicaId, prompt_tokens: int, cached_tokens: int) -> None:
        """What a path carries whose ends do not tell: the pull took what the first token took beyond
        computing the rest. Where the turn waited as well, or read from its own host, the two cannot be told
        apart."""
        chosen = ticket.decision.chosen
        came = cached_tokens - chosen.cached_tokens
        if ticket.ttft_s is None or not ticket.turn.stream or came <= 0:
            return
        if chosen.wait_s or chosen.slot_s or chosen.host_tokens:
            return
        rest_s = chosen.curve.seconds(max(1, prompt_tokens - cached_tokens), prompt_tokens)
        seconds = max(LEAST_FETCH_S, ticket.ttft_s - rest_s)
        self.book.measured(source, ticket.decision.replica, came, seconds)


def shared_depth(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal segments two chains begin. Each hash stands for all before it, too."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            least = middle
        else:
            most = middle - 1
    return least
