"""A decision as plain fields, for JSON: where the turn went, why, and what each option was worth."""

from router.core.decide import Decision


def bill(decision: Decision) -> dict[str, object]:
    """All of a decision but its time, which is monotonic and means nothing outside of this process.

    A price is `None` where the strategy compared none.
    """
    prices = decision.prices or (None,) * len(decision.candidates)
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
        "candidates": [
            {
                "replica": candidate.replica,
                "price": price,
                "cached_tokens": candidate.cached_tokens,
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
