"""Who computes the prompts of paired turns: chosen, given to a prefill replica, and learned from at the end.

The answers are the decode replicas', and their books are kept elsewhere (`settling`). What decode offers, and
what became of pairs, is in the pair book.
"""

from collections.abc import Iterable
from typing import Final

from router.base.ids import ReplicaId
from router.core.claims import Claim
from router.core.conditions import Conditions
from router.core.decide import Candidate, FleetView, Pulls
from router.core.leg import Leg
from router.core.members import Members
from router.core.model import Model
from router.core.observe import FAILURES, Outcome, Prefilled, Usage
from router.core.pairbook import PairBook, PairEnd, Unclaimed, Unreturned
from router.core.pairing import Pairing, behind, choose, prices_of
from router.core.plan import PairRules
from router.core.policies import Policies
from router.core.pullbook import CAME, Pulled
from router.core.pulling import LEAST_FETCH_S
from router.core.request import Turn
from router.core.shelves import Shelves
from router.core.teller import Teller
from router.core.ticket import Ticket
from router.core.token_ids import TokenIds
from router.core.views import Views

# How the prefill ends of a replica that could not fetch what it was sent: it speaks against the path.
_DECLINED: Final = frozenset({Outcome.SERVER_ERROR, Outcome.TIMEOUT})

_UNKNOWN: Final = TokenIds(b"", 0)


class Legs:
    """The prompts of one fleet's paired turns, from the choice of who computes each to its end."""

    __slots__ = ("_book", "_conditions", "_members", "_policies", "_shelves", "_teller", "_views")

    def __init__(
        self,
        policies: Policies,
        members: Members,
        views: Views,
        shelves: Shelves,
        conditions: Conditions,
        book: PairBook,
        teller: Teller,
    ) -> None:
        self._policies = policies
        self._members = members
        self._views = views
        self._shelves = shelves
        self._conditions = conditions
        self._book = book
        self._teller = teller

    # --- choosing -----------------------------------------------------------------------------------

    def pairing(
        self, turn: Turn, now: float, place: int, model: Model, failed: tuple[ReplicaId, ...] = ()
    ) -> Pairing | None:
        """Who would compute the turn's prompt, under the policy of that place; `None` where nobody can.
        `failed`: those that failed it already."""
        fleet, book = self._members, self._book
        members = [
            member
            for member in fleet.prefills
            if (member.well or member.returning(now))
            and member.id not in failed
            and (member.models is None or turn.model in member.models)
        ]
        if not members or not fleet.decodes:
            return None
        # As a turn that may wait, which no limit refuses: who answers is what limits are for.
        view, _ = self._views.look(turn, now, place, members, model, (now, 1.0))
        prompt_tokens = view.prompt_tokens
        pulls: Pulls | None = None
        order: Iterable[ReplicaId] = ()
        if turn.session is not None:
            order = fleet.prefill_ring.order(turn.session)
            claim = book.claims.peek(model.key(turn.session), now) if turn.returns else None
            if claim is not None and fleet.two_way:
                tokens = min(len(claim.tokens), prompt_tokens)
                pulls = book.transfers.view([(claim.replica, tokens)], fleet.two_way, now)
                if pulls is not None:
                    # Unlike a pull between agents, one that fails is declined at once: that is no risk.
                    pulls = pulls._replace(sources=tuple([s._replace(chance=1.0) for s in pulls.sources]))
        return choose(
            view.candidates, prompt_tokens, prices_of(self.rules(place)), pulls, fleet.decodes, order
        )

    def behind(self, view: FleetView, pairing: Pairing) -> FleetView:
        """The view with its decode replicas as they are behind that prefill."""
        start_s, token_s = self._book.transfers.path(pairing.prefill, pairing.prefill)
        return behind(view, pairing, start_s, token_s)

    # --- giving -------------------------------------------------------------------------------------

    def begin(
        self, ticket: Ticket, now: float, *, plan: int = 0, failed: tuple[ReplicaId, ...] = ()
    ) -> Leg | None:
        """Give the prompt of a paired turn to a prefill replica and count it there; `None` where none can
        take it, and decode has to compute it. `failed`: those that failed it already."""
        turn, model = ticket.turn, ticket.model
        pairing = ticket.decision.pair
        assert pairing is not None
        member = self._members.get(pairing.prefill)
        if failed or member is None or not member.takes_turns():
            pairing = self.pairing(turn, now, plan, model, failed)
            if pairing is None:
                return None
            member = self._members[pairing.prefill]
        claim = None
        if pairing.pull is not None and turn.session is not None:
            claim = self._book.claims.take(model.key(turn.session), now)
        leg = Leg(self, ticket, pairing, member, claim, len(failed), now)
        if claim is not None:
            whole_s = member.learned.curve.seconds(pairing.prompt_tokens, pairing.prompt_tokens)
            leg.patience_s = self.rules(plan).deadline_s + member.wait_s(now) + whole_s
            leg.sharing = self._book.transfers.begin(claim.replica, member.id, now)
        member.take(leg, pairing.prompt_tokens, pairing.prompt_tokens, leg.missing, now)
        if member.reach != member.shelf:
            there = pairing.chosen
            if there.host_tokens:
                member.reloads(leg, there.host_tokens * there.curve.reload_s, there.slot_s, now)
        return leg

    def leg_ended(self, leg: Leg, outcome: Outcome, now: float, usage: Usage | None) -> None:
        """The prefill of a paired turn is over. For the leg to call."""
        ticket, member, pairing, pull = leg.ticket, leg.member, leg.pairing, leg.pairing.pull
        turn = ticket.turn
        if leg.of_this_life:
            member.in_flight -= 1
            member.kv_tokens -= pairing.prompt_tokens
        pulled: Pulled | None = None
        if outcome is Outcome.COMPLETED and self._members.has(member, leg.epoch):
            self._shelves.touch(member, turn.chain.hashes, turn.chain.ends)
            if member.failing or not member.well:
                self._conditions.succeeded(member, leg.epoch, now)
            pulled = self._learn(leg, usage, now)
        elif outcome in FAILURES and not (leg.claim_used and outcome in _DECLINED):
            self._conditions.failed(member, leg.epoch, outcome, leg.attempt, now)
        if leg.sharing and pull is not None:
            transfers = self._book.transfers
            transfers.end(pull.source, member.id, leg.sharing, pulled, now)
            if leg.claim_used and outcome in _DECLINED:
                transfers.result(pull.source, False, now)
        if leg.claim is not None and leg.claim_used:
            self._book.claims.fetched(leg.claim)
        elif leg.claim is not None and turn.session is not None:
            self._book.claims.restore(ticket.model.key(turn.session), leg.claim)
        if outcome is Outcome.COMPLETED:
            self._book.ends[PairEnd.PULLED if leg.claim_used else PairEnd.ONE_WAY] += 1
        if self._teller.observer is not None:
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
            self._teller.tell(lambda o: o.on_prefilled(prefilled))

    def _learn(self, leg: Leg, usage: Usage | None, now: float) -> Pulled | None:
        """Take what a leg's replica reports for what it takes, or for what its fetch took: that is the
        answer."""
        if usage is None or usage.prompt_tokens is None or usage.cached_tokens is None:
            return None
        pull = leg.pairing.pull
        chosen = leg.pairing.chosen
        if leg.claim_used:
            if pull is None:
                return None
            return self._fetched(leg, chosen, pull.tokens, usage.prompt_tokens, usage.cached_tokens, now)
        leg.member.learned.first_token(
            usage.prompt_tokens,
            usage.cached_tokens,
            min(chosen.host_tokens, usage.cached_tokens),
            max(chosen.wait_s, chosen.slot_s, chosen.link_s),
            now - leg.began,
            now,
            shared=bool(chosen.in_flight or chosen.foreign),
        )
        return None

    def _fetched(
        self, leg: Leg, chosen: Candidate, wanted: int, prompt_tokens: int, cached_tokens: int, now: float
    ) -> Pulled:
        """How the fetch of a leg went, by what the replica reports and how long it took."""
        came = max(0, cached_tokens - chosen.cached_tokens)
        curve = leg.member.learned.curve
        rest_s = chosen.wait_s + curve.seconds(max(1, prompt_tokens - cached_tokens), prompt_tokens)
        size = int(came * self._book.transfers.token_bytes)
        return Pulled(came, size, max(LEAST_FETCH_S, now - leg.began - rest_s), came >= CAME * wanted)

    # --- what decode holds --------------------------------------------------------------------------

    def nothing_back(self, leg: Leg) -> None:
        """Count why a leg has no claim: once for a turn's prompt, however often it is given away."""
        if leg.number:
            return
        pairing = leg.pairing
        cheaper = pairing.pulls is not None and pairing.pull is None
        self._book.unreturned[Unreturned.CHEAPER if cheaper else Unreturned.NONE] += 1

    def fetch_back(self, leg: Leg, ids: TokenIds | None, place: int) -> int:
        """How many leading tokens of a prompt its replica is to fetch by the leg's claim, which is used from
        now on; 0 where all is to be computed.

        `ids`: the prompt's, `None` where they are not known. What they have in common with the claim's, in
        whole blocks and less than the whole prompt, is the same text: nothing else may be fetched."""
        claim, unreturned = leg.claim, self._book.unreturned
        assert claim is not None
        if ids is None:
            unreturned[Unreturned.UNKNOWN_TOKENS] += 1
            return 0
        shared = min(claim.tokens.common(ids), len(ids) - 1)
        tokens = shared // claim.block_tokens * claim.block_tokens
        if tokens < max(1, self.rules(place).least_tokens):
            # Nor will it be of use to a later turn: what the two prompts share has ended.
            unreturned[Unreturned.OTHER_TOKENS] += 1
            leg.claim = None
            self._book.claims.drop(claim)
            return 0
        leg.claim_used = True
        return tokens

    def keep(
        self,
        ticket: Ticket,
        offer: bytes,
        ids: TokenIds | None,
        block_tokens: int,
        held_tokens: int,
        place: int,
        now: float,
        *,
        comparable: bool = True,
    ) -> None:
        """Enter what the ticket's replica holds of a turn, for the session's next; or have it let go of.

        `offer`: what it said. `ids`: of the tokens whose KV it holds, `None` where they are not known.
        `held_tokens`: what it keeps, in whole blocks. `comparable`: the next prompt's ids can be told."""
        turn, book = ticket.turn, self._book
        known = ids if ids is not None else _UNKNOWN
        until = self.claimable(ticket, now)
        expires_at = until if until is not None else now + self.rules(place).ttl_s
        replica = ticket.decision.replica
        claim = Claim(replica, ticket.epoch, turn.model, known, block_tokens, offer, expires_at, held_tokens)
        if until is None or turn.session is None:
            book.unclaimed[Unclaimed.NO_SESSION] += 1
        elif not comparable or not known:
            book.unclaimed[Unclaimed.NOT_COMPARABLE] += 1
        else:
            book.claims.put(ticket.model.key(turn.session), claim)
            return
        book.claims.refuse(claim)

    # --- what goes with it --------------------------------------------------------------------------

    def rules(self, place: int) -> PairRules:
        """How pairs work under the policy of that place."""
        return self._policies.plan(place).pair

    def block_tokens(self, replica: ReplicaId) -> int | None:
        """Tokens of a KV block there; `None` where it has not told."""
        member = self._members.get(replica)
        return member.report.block_tokens if member is not None and member.report is not None else None

    def release_by(self, model: str) -> ReplicaId | None:
        """The prefill replica that has least to do, of those that can tell a decode replica to let go of
        what it holds of a model; `None` where there is none."""
        able = [
            member
            for member in self._members.prefills
            if member.spec.two_way
            and member.takes_turns()
            and (member.models is None or model in member.models)
        ]
        return min(able, key=lambda member: (member.in_flight, member.id)).id if able else None

    def claimable(self, ticket: Ticket, now: float) -> float | None:
        """Until when what the ticket's replica offers may be fetched; `None` where nobody could do so."""
        turn, fleet = ticket.turn, self._members
        if not fleet.two_way or turn.session is None or turn.last:
            return None
        if not fleet.has(ticket.member, ticket.epoch):
            return None
        return now + self._policies.default.pair.ttl_s
