"""A decision as plain fields, for JSON: where the turn went, why, and what each option was worth."""

from router.base.ids import ReplicaId
from router.core.decide import Decision
from router.core.pairing import Pairing
from router.core.price import Line, lines


def bill(decision: Decision) -> dict[str, object]:
    """All of a decision but its time, which is monotonic and means nothing outside of this process.

    A price is `None` where the strategy has none. `options` are the priced ways of having the turn, each with
    its terms in milliseconds (`router.core.price` says what they mean); `None` where the strategy has none or
    prices in another unit. `pair` is who computes the prompt where the replica does not, with the ways that
    that could have been done; the replica's own `wait` then includes it.
    """
    options = _options(decision)
    prices: tuple[float | None, ...] = decision.prices or (None,) * len(decision.candidates)
    if options is not None:
        least: dict[ReplicaId, float] = {}
        for line in options:
            least[line.replica] = min(line.price_ms, least.get(line.replica, line.price_ms))
        prices = tuple(round(least[candidate.replica], 3) for candidate in decision.candidates)
    return brief_bill(decision) | {
        "pair": None if decision.pair is None else _pair(decision.pair),
        "options": None if options is None else [_rounded(line) for line in options],
        "candidates": [
            {
                "replica": candidate.replica,
                "price": price,
                "cached_tokens": candidate.cached_tokens,
                "host_tokens": candidate.host_tokens,
                "in_flight": candidate.in_flight,
                "pending_tokens": candidate.pending_tokens,
                "working_set_tokens": candidate.working_set_tokens,
                "capacity_tokens": candidate.capacity_tokens,
                "foreign": candidate.foreign,
                "recent_failures": candidate.recent_failures,
                "over": candidate.over,
                "free_tokens": candidate.free_tokens,
                "held_tokens": candidate.held_tokens,
                "ahead_tokens": candidate.ahead_tokens,
            }
            for candidate, price in zip(decision.candidates, prices, strict=True)
        ],
    }


def _pair(pair: Pairing) -> dict[str, object]:
    pull = pair.pull
    return {
        "prefill": pair.prefill,
        "pull": None if pull is None else {"source": pull.source, "tokens": pull.tokens},
        "options": [_rounded(line) for line in pair.bill()],
    }


def _options(decision: Decision) -> tuple[Line, ...] | None:
    if decision.price_list is None:
        return None
    options = lines(
        decision.candidates, decision.prompt_tokens, decision.home, decision.price_list, decision.pulls
    )
    if decision.pair is None:
        return options
    decodes = decision.pair.decodes
    return tuple([line.replace(way="pair") if line.replica in decodes else line for line in options])


def _rounded(line: Line) -> dict[str, object]:
    """To the microsecond: more is no news."""
    fields = {name: getattr(line, name) for name in line.__match_args__}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}


def brief_bill(decision: Decision) -> dict[str, object]:
    """Where the turn went and why, without what the options were."""
    pull = decision.pull
    return {
        "replica": decision.replica,
        "kind": decision.kind.value,
        "reason": decision.reason,
        "policy": decision.policy,
        "attempt": decision.attempt,
        "waited_ms": round(decision.waited_s * 1000.0, 3),
        "home": decision.home,
        "prompt_tokens": decision.prompt_tokens,
        "predicted_cached_tokens": decision.cached_tokens,
        "pull": None if pull is None else {"source": pull.source, "tokens": pull.tokens},
    }
