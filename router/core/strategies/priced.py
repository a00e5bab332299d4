"""Strategy `priced`: sessions are placed by working set, and later turns go where they cost least.

A session that nobody holds is placed, not priced: choosing its replica by what is cached there would
gather all sessions with one system prompt on few replicas and leave the KV of the others unused.
"""

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from router.base.ids import ReplicaId
from router.core.decide import Candidate, Choice, FleetView
from router.core.price import Pull, local_s, offer, pull_s, residue_s, residue_token_s
from router.core.request import Turn
from router.core.strategies.common import (
    BUSY_RELATIVE,
    BUSY_TURNS,
    LATELY,
    beside_kin,
    bounded_owner,
    ceiling,
    emptiest,
    find,
    footprints,
    is_own,
    least_loaded,
    load,
    not_busy,
    opening_tokens,
    within_limits,
)
from router.core.strategies.params import PricedParams

_SUBSTANTIAL: Final = 0.5
"""Share of the prompt that a replica must hold for a turn away from home to go there. With less, most of
the prompt is computed again wherever it goes, and the session may as well go where there is room."""


_DEFAULTS: Final = PricedParams()


class Priced:
    """Home, unless another replica costs less even with leaving home; a session that cannot go home goes to
    whoever else holds its KV; and where nobody does, by the ring.

    Placing takes the first in the ring's order for the session whose footprint (the working set, see
    `common.footprints`) is within the bound. A sub-agent, and a conversation that forks from another, goes to
    one within the bound that holds what it begins with (`common.beside_kin`). A turn without a session goes
    to whoever holds more than half of its prompt and is not busy; where nobody does, to the least loaded.

    Wherever a turn goes, KV that another replica holds is pulled if that costs less than computing it.
    """

    Params: ClassVar = PricedParams  # mypyc keeps no alias at run time

    __slots__ = ("_params", "_prices")

    def __init__(self, params: PricedParams = _DEFAULTS) -> None:
        self._params = params
        self._prices = params.prices

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        prices, candidates = self._prices, view.candidates
        home = find(candidates, view.home) if view.home is not None else None
        if home is not None and home.over is None:
            price = local_s(home, view.prompt_tokens, prices, move=False)
            # Whoever else has it costs more than leaving home does.
            if price <= prices.move_s:
                return Choice(home, "home", None, None, prices)
            return self._cheapest(view, home, price)
        eligible, relaxed = within_limits(candidates)
        if view.home is None:
            chosen, reason = self._place(turn, view, eligible)
        elif home is not None and relaxed:
            chosen, reason = home, "home"
        else:
            chosen, reason = self._away(turn, view, eligible, view.home)
            reason = f"{'home not available' if home is None else 'home over a limit'}, {reason}"
        return Choice(chosen, reason + relaxed, None, self._pull(chosen, view), prices)

    def _cheapest(self, view: FleetView, home: Candidate, price: float) -> Choice:
        """Home at its price, or who costs less."""
        prompt, prices = view.prompt_tokens, self._prices
        best, least, best_pull = home, price, None
        token_s = residue_token_s(home, prices)
        for c in view.candidates:
            # One that fails fast must not look idle.
            if c is home or c.over is not None or c.recent_failures >= LATELY:
                continue
            local = local_s(c, prompt, prices, move=True) + residue_s(c, home, token_s)
            if local < least:
                best, least, best_pull = c, local, None
        if view.pulls is not None and prices.pull:
            for c in view.candidates:
                if c.over is not None or (c is not home and c.recent_failures >= LATELY):
                    continue
                pull = offer(c, prompt, prices, view.pulls)
                if pull is not None:
                    cost = pull_s(c, prompt, prices, pull, move=c is not home) + residue_s(c, home, token_s)
                    if cost < least:
                        best, least, best_pull = c, cost, pull
        if best is home:
            return Choice(home, "home", None, best_pull, prices)
        return Choice(best, f"cheaper than home by {(price - least) * 1000:.0f} ms", None, best_pull, prices)

    def _pull(self, chosen: Candidate, view: FleetView) -> Pull | None:
        """The pull that makes the turn cheaper where it was put; `None` if none does."""
        prices = self._prices
        if view.pulls is None or not prices.pull:
            return None
        pull = offer(chosen, view.prompt_tokens, prices, view.pulls)
        if pull is None:
            return None
        local = local_s(chosen, view.prompt_tokens, prices, move=False)
        return pull if pull_s(chosen, view.prompt_tokens, prices, pull, move=False) < local else None

    def _away(
        self, turn: Turn, view: FleetView, eligible: Sequence[Candidate], home: ReplicaId
    ) -> tuple[Candidate, str]:
        """The replica for a session that cannot go home."""
        least = _SUBSTANTIAL * view.prompt_tokens
        opening = opening_tokens(turn, view.prompt_tokens)
        # Where only the opening lies, other sessions left it: following it would gather on one replica
        # all that a lost home leaves behind.
        holders = [c for c in eligible if c.cached_tokens > least and is_own(c, home, opening)]
        if not holders:
            return self._place(turn, view, eligible)
        return min(holders, key=lambda c: (-c.cached_tokens, load(c), c.placed_at)), "most cached"

    def _place(self, turn: Turn, view: FleetView, eligible: Sequence[Candidate]) -> tuple[Candidate, str]:
        """The replica for a session that nobody holds."""
        if turn.session is None:
            return self._without_session(turn, view, eligible)
        relative, absolute = self._params.relative, self._params.absolute
        held = footprints(eligible)
        if view.home is None:
            kin = beside_kin(turn, view, eligible, held, ceiling(held, relative, absolute))
            if kin is not None:
                return kin
        chosen, reason = bounded_owner(turn.session, view, eligible, held, relative, absolute)
        if chosen is None:
            return emptiest(eligible), "none on the ring, emptiest"
        return chosen, reason

    def _without_session(
        self, turn: Turn, view: FleetView, eligible: Sequence[Candidate]
    ) -> tuple[Candidate, str]:
        """The replica for a turn of no session: what it shares with others is all that it can reuse."""
        least = _SUBSTANTIAL * view.prompt_tokens
        longest = max([c.cached_tokens for c in eligible])
        if longest > least:
            free = not_busy(eligible, BUSY_RELATIVE, BUSY_TURNS)
            longest = max([c.cached_tokens for c in free])
            if longest > least:
                holders = [c for c in free if c.cached_tokens == longest]
                return least_loaded(turn, view, holders), "no session, most cached"
        return least_loaded(turn, view, eligible), "no session, least loaded"
