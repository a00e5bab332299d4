"""Broken chains as plain fields, for JSON."""

from router.base.ids import SessionKey
from router.core.breaks import Break
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
