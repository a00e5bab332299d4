"""Pairs: which prefill replica computes a prompt, whose KV a decode replica then fetches.

Priced like any other option, by the same sum (`price`). A pair costs what its prefill replica takes, by the
cheaper of its two ways (computing what is missing there, or fetching first what decode holds of the session's
last turn), then bringing the KV to the decode replica, and what is to be waited for there. The first does not
depend on who decodes, nor the rest on who prefills, so each half is chosen by itself. Knows no claims and no
replicas beyond their candidates.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from router.base.ids import ReplicaId
from router.core.decide import Candidate, FleetView, Pulls
from router.core.estimate.prefill import Curve
from router.core.plan import PairRules
from router.core.price import Line, Pull, lines, local_s, offer, pull_s
from router.core.prices import Prices

# Prefill replicas whose prices differ by less, absolutely or by share, are as good as one another: which one
# it is then goes by the ring, so that an idle fleet does not prefill everything on its fastest replica.
_ALIKE_S: Final = 0.01
_ALIKE: Final = 0.1

# From here up, the last failure is at most ten seconds old: one that fails fast must not look idle.
_LATELY: Final = 0.5


class Pairing(NamedTuple):
    """Who computes a turn's prompt, and what there was to choose from."""

    prefill: ReplicaId
    pull: Pull | None
    """What it fetches first from a decode replica; `None` = nothing."""
    cached_tokens: int
    """Of the prompt, that it need not compute: what lies there, and what it fetches."""
    seconds: float
    """Until the prompt is computed."""
    candidates: tuple[Candidate, ...]
    """Prefill replicas, as they stood."""
    prompt_tokens: int
    prices: Prices
    pulls: Pulls | None
    decodes: frozenset[ReplicaId]
    """Replicas that fetch what was computed. All others that may answer compute for themselves."""

    @property
    def chosen(self) -> Candidate:
        """The prefill replica, as it stood."""
        return next(c for c in self.candidates if c.replica == self.prefill)

    def bill(self) -> tuple[Line, ...]:
        """Each way that the prompt could have been computed."""
        return lines(self.candidates, self.prompt_tokens, None, self.prices, self.pulls)


def prices_of(rules: PairRules) -> Prices:
    """What a prefill replica's ways cost under a policy. Nobody leaves home by them: home is with decode."""
    return Prices(move_s=0.0, pull_least_tokens=rules.least_tokens, pull_deadline_s=rules.deadline_s)


def choose(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    prices: Prices,
    pulls: Pulls | None,
    decodes: frozenset[ReplicaId],
    order: Iterable[ReplicaId],
) -> Pairing | None:
    """The cheapest prefill replica; `None` where there is none. Of those that are as good as it, the first in
    `order`."""
    sound = [c for c in candidates if c.over is None and c.recent_failures < _LATELY] or candidates
    if not sound:
        return None
    ways: dict[ReplicaId, tuple[Candidate, float, Pull | None]] = {}
    for c in sound:
        seconds, pull = local_s(c, prompt_tokens, prices, move=False), None
        if pulls is not None and (offered := offer(c, prompt_tokens, prices, pulls)) is not None:
            fetched_s = pull_s(c, prompt_tokens, prices, offered, move=False)
            if fetched_s < seconds:
                seconds, pull = fetched_s, offered
        ways[c.replica] = c, seconds, pull
    least = min(seconds for _, seconds, _ in ways.values())
    most = least + max(_ALIKE_S, _ALIKE * least)
    alike = [replica for replica, (_, seconds, _) in ways.items() if seconds <= most]
    chosen = alike[0] if len(alike) == 1 else next((one for one in order if one in alike), alike[0])
    c, seconds, pull = ways[chosen]
    cached = c.cached_tokens + (pull.tokens if pull is not None else 0)
    return Pairing(
        chosen,
        pull,
        min(cached, max(0, prompt_tokens - 1)),
        seconds,
        tuple(candidates),
        prompt_tokens,
        prices,
        pulls,
        decodes,
    )


def behind(view: FleetView, pairing: Pairing, start_s: float, token_s: float) -> FleetView:
    """The view with its decode replicas as they are behind that prefill: begun when it is over, and with
    fetching (`start_s`, and `token_s` for each token) in the place of computing."""
    fetching = Curve(start_s, token_s, 0.0, 0.0)
    return view.replace(
        candidates=tuple(
            c.replace(wait_s=c.wait_s + pairing.seconds, curve=fetching)
            if c.replica in pairing.decodes
            else c
            for c in view.candidates
        )
    )
