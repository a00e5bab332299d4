"""What several strategies share: the policy's limits, figures of load, and the fall-back without a ring.

Functions of candidates only. They know no strategy and keep nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Candidate, FleetView
from router.core.request import Turn

FAILURE_TURNS: Final = 8
"""Turns in flight that one failure of this instant counts for. A replica that refuses every turn at once
has nothing in flight; with a figure of a few turns it would still look better than any that works."""

LATELY: Final = 0.5
"""`Candidate.recent_failures` from here up: the last failure is at most ten seconds old, or one of many."""


_SLOW: Final = 1.5
"""Times as long for a token as the fastest replica takes. Less is within what is learned of equal ones."""

_WORTH_TOKENS: Final = 512
"""A beginning that is longer by less on some replicas than on others draws no session there: it is computed
in less time than a good place is worth."""

_FORK_TOKENS: Final = 2048
"""An opening that draws sessions whose client names no parent. Prompts of tests and of small talk are shorter
and often the same."""

_MOST_OF_IT: Final = 0.9

BUSY_RELATIVE: Final = 1.25
BUSY_TURNS: Final = 8.0
"""A replica whose load is above the mean by both draws nothing: the bounds that `bounded-ring` and `prefix`
have by default."""


def within_limits(candidates: Sequence[Candidate]) -> tuple[Sequence[Candidate], str]:
    """Those over no limit of the policy, and what the reason must add: nothing.

    Where each one is over a limit, the limits are ignored: all candidates, and words that say so.
    """
    within = [c for c in candidates if c.over is None]
    return (within, "") if within else (candidates, ", all over their limits")


def find(candidates: Iterable[Candidate], replica: ReplicaId) -> Candidate | None:
    """The candidate of this name; `None` where there is none."""
    for candidate in candidates:
        if candidate.replica == replica:
            return candidate
    return None


def load(candidate: Candidate) -> float:
    """How busy a replica is, in turns: ours there, requests of others, and its recent failures.

    `foreign` of `None` adds nothing: what is ours is then all that is known. A replica that others keep
    busy answers us late, so our own count comes to show it.
    """
    turns = candidate.in_flight if candidate.foreign is None else candidate.in_flight + candidate.foreign
    failures = candidate.recent_failures
    # Whole turns: a count that only ever halves would keep a replica behind its idle equals for hours.
    return turns + int(failures * FAILURE_TURNS) if failures else turns


def ceiling(figures: Sequence[float], relative: float, absolute: float) -> float:
    """The bound on one replica's figure: above it is above both `relative × mean` and `mean + absolute`.

    The least of the figures never exceeds it.
    """
    mean = sum(figures) / len(figures)
    # The mean of equal figures can round to just below them.
    return max(relative * mean, mean + absolute, min(figures))


def not_busy(candidates: Sequence[Candidate], relative: float, absolute: float) -> list[Candidate]:
    """Those whose `load` is within `ceiling`: one at least."""
    loads = [load(c) for c in candidates]
    bound = ceiling(loads, relative, absolute)
    return [c for c, turns in zip(candidates, loads, strict=True) if turns <= bound]


def bounded_owner(
    session: SessionKey,
    view: FleetView,
    candidates: Sequence[Candidate],
    figures: Sequence[float],
    relative: float,
    absolute: float,
) -> tuple[Candidate | None, str]:
    """The first in the ring's order whose figure is within `ceiling`, and the reason in words.

    `None` where none of those within it is on the ring.
    """
    bound = ceiling(figures, relative, absolute)
    within = {c.replica: c for c, figure in zip(candidates, figures, strict=True) if figure <= bound}
    reason = "owner on the ring"
    for replica in view.ring.order(session):
        candidate = within.get(replica)
        if candidate is not None:
            return candidate, reason
        reason = "next on the ring"
    return None, ""


def least_loaded(turn: Turn, view: FleetView, candidates: Sequence[Candidate]) -> Candidate:
    """The least `load`; among equals the smaller working set, then the one longest without a new session.

    What is then still equal takes turns by the view's serial. A turn without a session joins no working
    set and counts as no placement, so neither would tell equals apart for long: they take turns at once.
    """
    start = view.serial % len(candidates)
    rotated = [*candidates[start:], *candidates[:start]]
    loads = [load(c) for c in rotated]
    least = min(loads)
    equals = [c for c, turns in zip(rotated, loads, strict=True) if turns == least]
    if turn.session is None or len(equals) == 1:
        return equals[0]
    return min(equals, key=lambda c: (c.working_set_tokens, c.placed_at))


def footprints(candidates: Sequence[Candidate]) -> list[float]:
    """Tokens of KV that each replica is bound to hold: its living sessions, and what is on its way there or
    waits to go there.

    What is on its way makes a burst count before any of it was answered. Where every candidate reports
    its capacity, the figures are scaled to a replica of mean capacity; where one does not, capacities are
    taken to be equal. One that is much slower than the fastest is bound by so much more: sessions leave it
    where it is busy, and its emptiness must not draw the new ones, whose prompts take longest there. One
    that failed within the last ten seconds counts no less than the mean of those that did not: sessions never
    settle on it, and so with its emptiness.
    """
    held: list[float] = []
    capacities: list[int] = []
    failing = False
    for c in candidates:
        held.append(c.working_set_tokens + c.pending_tokens + c.arriving_tokens + c.held_tokens)
        if c.capacity_tokens:
            capacities.append(c.capacity_tokens)
        if c.recent_failures >= LATELY:
            failing = True
    if len(capacities) == len(held) and capacities.count(capacities[0]) < len(held):
        mean_capacity = sum(capacities) / len(capacities)
        held = [tokens * mean_capacity / own for tokens, own in zip(held, capacities, strict=True)]
    token_s = [c.curve.token_s for c in candidates]
    fastest = min(token_s)
    if max(token_s) > _SLOW * fastest:
        times = [own / fastest if own > _SLOW * fastest else 1.0 for own in token_s]
        held = [tokens * more for tokens, more in zip(held, times, strict=True)]
    if failing:
        failed = [c.recent_failures >= LATELY for c in candidates]
        sound = [tokens for tokens, bad in zip(held, failed, strict=True) if not bad]
        if sound:
            mean = sum(sound) / len(sound)
            held = [max(tokens, mean) if bad else tokens for tokens, bad in zip(held, failed, strict=True)]
    return held


def emptiest(candidates: Sequence[Candidate]) -> Candidate:
    """The least `footprints`, then the least `load`, then the one longest without a new session."""
    held = footprints(candidates)
    least = min(held)
    equals = [c for c, tokens in zip(candidates, held, strict=True) if tokens == least]
    return equals[0] if len(equals) == 1 else min(equals, key=lambda c: (load(c), c.placed_at))


def opening_tokens(turn: Turn, prompt_tokens: int) -> float:
    """Tokens of the conversation's opening (tools, system, first user message), which sessions may share."""
    chain = turn.chain
    if not chain.opening or not chain.ends[-1]:  # an empty text is a segment of no bytes
        return 0.0
    return prompt_tokens * chain.ends[chain.opening - 1] / chain.ends[-1]


def is_own(candidate: Candidate, home: ReplicaId, opening: float) -> bool:
    """Whether what lies at the candidate is this very session's KV, not what any session like it would find.

    It is at home, and wherever more than the opening lies. One token is left for rounding: opening and
    match are both estimates from bytes.
    """
    return candidate.replica == home or candidate.cached_tokens > opening + 1


def beside_kin(
    turn: Turn, view: FleetView, candidates: Sequence[Candidate], figures: Sequence[float], bound: float
) -> tuple[Candidate, str] | None:
    """Where a session that begins should begin, and why, if much of its prompt lies on some replicas only.

    So it is with a sub-agent that goes on from its parent's prompt, and with a conversation that forks from
    another, whose opening it has. Of those that hold most of it the first in the ring's order is taken, of
    candidates whose figure is within `bound`, that are not busy, and at which no more tokens go before it
    than it finds there: of many that begin at once each replica gets some, and those that follow find the
    beginning there, too.
    """
    least = min([c.cached_tokens for c in candidates])
    most = max([c.cached_tokens for c in candidates])
    if most - least < _WORTH_TOKENS:
        return None
    if view.parent is None and most < max(_FORK_TOKENS, opening_tokens(turn, view.prompt_tokens) - 1):
        # What sessions of all kinds begin with, such as a system prompt, must not gather them.
        return None
    # By name: a candidate's own hash is one of all its figures.
    free = {c.replica for c in not_busy(candidates, BUSY_RELATIVE, BUSY_TURNS)}
    patience = most - least + min([c.pending_tokens + c.ahead_tokens for c in candidates])
    near = [
        c
        for c, figure in zip(candidates, figures, strict=True)
        if figure <= bound
        and c.replica in free
        and c.pending_tokens + c.ahead_tokens <= patience
        and c.cached_tokens - least >= _MOST_OF_IT * (most - least)
    ]
    if not near or turn.session is None:
        return None
    reason = "beside its parent" if view.parent is not None else "where its opening lies"
    for replica in view.ring.order(turn.session):
        if (candidate := find(near, replica)) is not None:
            return candidate, reason
    return near[0], reason
