"""Decides where a turn goes: who is eligible, seen under its policy, and chosen by that policy's strategy.

Counts nothing and keeps nothing.
"""

from random import Random

from router.base.ids import ReplicaId
from router.core.continuing import Continuing
from router.core.decide import Candidate, Decision, Kind
from router.core.eligible import Eligible
from router.core.legs import Legs
from router.core.members import Members
from router.core.model import Model
from router.core.policies import Policies
from router.core.queue import Chosen
from router.core.request import Turn
from router.core.views import Views
from router.core.waiting import Rank


class Deciding:
    """Decides for one fleet. `rng` is drawn from where a strategy draws lots."""

    __slots__ = ("_continuing", "_eligible", "_legs", "_members", "_policies", "_rng", "_views")

    def __init__(
        self,
        policies: Policies,
        members: Members,
        eligible: Eligible,
        views: Views,
        continuing: Continuing,
        legs: Legs,
        rng: Random,
    ) -> None:
        self._policies = policies
        self._members = members
        self._eligible = eligible
        self._views = views
        self._continuing = continuing
        self._legs = legs
        self._rng = rng

    def decide(
        self,
        turn: Turn,
        now: float,
        place: int,
        failed: tuple[ReplicaId, ...],
        model: Model,
        rank: Rank | None = None,
    ) -> Chosen:
        """The decision under the policy of that place, its replica, and how many leading segments are
        believed to lie there. Raises `Refused`.

        `failed`: who failed this turn, in order. `rank`: of a turn that may wait; `None` for one that does
        not.
        """
        fleet, plan = self._members, self._policies.plan(place)
        view, depths = self._views.look(turn, now, place, self._eligible.find(turn, now, failed), model, rank)
        pair = self._legs.pairing(turn, now, place, model) if fleet.prefills and turn.pairs else None
        if pair is not None:
            view = self._legs.behind(view, pair)
        pinned = None
        if turn.response_id is not None:
            pinned = self._continuing.pinned(turn, view.candidates)
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
        elif _is_among(home, candidates):
            kind = Kind.SPILL
        else:
            kind = Kind.FAILOVER
        cached = chosen.cached_tokens + (pull.tokens if pull is not None else 0)
        depth = 0
        member = fleet[replica]
        if pair is not None and replica in pair.decodes:
            # Whatever KV the two have from elsewhere goes through prefill.
            pull, cached = None, pair.cached_tokens
            if kind is not Kind.FAILOVER:
                kind = Kind.PAIR if pair.pull is None else Kind.PAIR_PULL
            if turn.one_way:
                reason += "; streamed, so nothing comes back from decode"
        else:
            depth = depths.get(member.reach, 0)
            if fleet.prefills and turn.pairs and replica in fleet.decodes:
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

    def ask(self, turn: Turn, now: float, place: int, model: Model) -> Decision:
        """What `decide` would say. Draws from a copy of the random source, so that asking does not change
        what comes next."""
        state = self._rng.getstate()
        try:
            return self.decide(turn, now, place, (), model)[0]
        finally:
            self._rng.setstate(state)


def _is_among(replica: ReplicaId, candidates: tuple[Candidate, ...]) -> bool:
    return any(candidate.replica == replica for candidate in candidates)
