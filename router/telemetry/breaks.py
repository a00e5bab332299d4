"""Broken chains as plain fields, for JSON."""

from router.base.ids import SessionKey
from router.core.breaks import MEANT, Break
from router.core.chain_watch import ChainWatch


def break_fields(broken: Break, now: float) -> dict[str, object]:
    """One break, with its cause in words. `now` is monotonic, as the break's own time."""
    return {
        "part": broken.part.value,
        "cause": broken.cause.value,
        "message": broken.message,
        "role": broken.role,
        "lost_tokens": broken.lost_tokens,
        "age_s": max(0.0, now - broken.at),
        "why": broken.words(),
    }


def session_breaks(chains: ChainWatch, key: SessionKey, now: float) -> dict[str, object]:
    """A session's breaks by cause, and the last one; `None` for that where there was none."""
    last = chains.last(key)
    return {
        "breaks": {cause.value: count for cause, count in chains.counts(key).items()},
        "last_break": break_fields(last, now) if last is not None else None,
    }


def breaks_overview(chains: ChainWatch, limit: int, now: float) -> dict[str, object]:
    """Turns that had one to go on from, those that did not by what differed, and at most `limit` sessions
    with their last breaks, the latest first."""
    totals = sorted(chains.breaks.items(), key=lambda one: -chains.lost_tokens.get(one[0], 0))
    return {
        "turns": chains.turns,
        "totals": [
            {
                "part": part.value,
                "cause": cause.value,
                "meant": cause in MEANT,
                "turns": count,
                "lost_tokens": chains.lost_tokens.get((part, cause), 0),
            }
            for (part, cause), count in totals
        ],
        "latest": [{"session": key, **break_fields(broken, now)} for key, broken in chains.latest(limit)],
    }
