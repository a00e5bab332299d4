"""Strategy `prefix`: the replica that has most of the prompt cached, unless it is too busy.

Knows nothing of the ring. Sessions matter only in telling a session's own KV from what many share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from typing import ClassVar, Final, TypeAlias

from router.core.decide import Candidate, Choice, FleetView
from router.core.request import Turn
from router.core.strategies.common import (
    ceiling,
    emptiest,
    footprints,
    is_own,
    least_loaded,
    not_busy,
    opening_tokens,
    within_limits,
)
from router.core.strategies.params import check_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """When a match is followed, and when its holder is too busy or too full for that."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    relative: float = 1.25
    """Times the candidates' mean load, or mean footprint, from 1 up. A holder above this and above the
    absolute bound is passed over."""
    absolute: float = 8.0
    """Turns above the candidates' mean load, from 0 up."""
    spread_tokens: float = 16384.0
    """Tokens above the candidates' mean footprint, from 0 up; only for KV that sessions share."""
    min_share: float = 0.3
    """Share of the prompt, 0 … 1: a shorter match is not followed."""
    min_tokens: int = 16
    """Tokens, from 0 up: a shorter match is not followed. An engine reuses whole blocks, and vLLM's
    hold 16."""

    def __post_init__(self) -> None:
        check_bound(self.relative, self.absolute)
        if not 0.0 <= self.spread_tokens < inf:
            raise ValueError(f"spread_tokens is {self.spread_tokens}: it must be a number from 0 up")
        if not 0.0 <= self.min_share <= 1.0:
            raise ValueError(f"min_share is {self.min_share}: it must be from 0 to 1")
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens is {self.min_tokens}: it must be from 0 up")


_DEFAULTS: Final = Params()


class MostCached:
    """The most cached tokens among holders within the bounds; without a match, the emptiest replica.

    A system prompt that many sessions share must not gather them all where it was seen first. So a holder
    of more than its part of the fleet's KV draws only sessions whose own KV it has. As those sessions then
    go elsewhere, the other replicas come to hold the shared part as well, and equal matches are placed
    like no match: by footprint, then load, then the longest without a new session. A turn without a session
    follows its match within the bound on load alone, and goes to the least loaded where there is none.

    The prices are the prompt tokens missing at each candidate.
    """

    Params: TypeAlias = Params

    __slots__ = ("_params",)

    def __init__(self, params: Params = _DEFAULTS) -> None:
        self._params = params

    def choose(self, turn: Turn, view: FleetView, rng: Random) -> Choice:
        prompt = view.prompt_tokens
        prices = tuple([max(prompt - c.cached_tokens, 0) for c in view.candidates])
        eligible, relaxed = within_limits(view.candidates)
        params = self._params
        free = not_busy(eligible, params.relative, params.absolute)
        holders = self._holders(turn, view, free)
        if not holders:
            if turn.session is None:
                return Choice(
                    least_loaded(turn, view, eligible), "little cached, least loaded" + relaxed, prices
                )
            return Choice(emptiest(free), "little cached, emptiest" + relaxed, prices)
        if len(holders) == 1:
            chosen = holders[0]
        else:
            chosen = emptiest(holders) if turn.session is not None else least_loaded(turn, view, holders)
        most = max([c.cached_tokens for c in eligible])
        reason = "most cached" if chosen.cached_tokens == most else "next best cached"
        return Choice(chosen, reason + relaxed, prices)

    def _holders(self, turn: Turn, view: FleetView, free: list[Candidate]) -> list[Candidate]:
        """Those with the longest match that may be followed; empty where there is none."""
        params = self._params
        least = max(params.min_share * view.prompt_tokens, params.min_tokens)
        matching = [c for c in free if c.cached_tokens >= least]
        if not matching:
            return []
        if turn.session is None:
            # It adds to no working set, so how full a holder is says nothing against it.
            longest = max([c.cached_tokens for c in matching])
            return [c for c in matching if c.cached_tokens == longest]
        held = footprints(free)
        full = ceiling(held, params.relative, params.spread_tokens)
        room = {c.replica for c, tokens in zip(free, held, strict=True) if tokens <= full}
        opening = opening_tokens(turn, view.prompt_tokens)
        home = view.home
        followed = [
            c for c in matching if c.replica in room or (home is not None and is_own(c, home, opening))
        ]
        longest = max([c.cached_tokens for c in followed], default=0)
        return [c for c in followed if c.cached_tokens == longest]
