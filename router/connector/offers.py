"""What may be offered to the scheduler for each request, and when: one attempt a request.

    (arrival) → ASKED → OFFERED → LOADING → SPENT
                  └────────┴─────────────────↑
A state machine without clock, socket or vLLM. It is told facts, and answers what to do next; the scheduler
side does it. Counts blocks, from the prompt's first on.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Final, NamedTuple

from router.connector.failures import Failures
from router.kv.keys import BlockHash
from router.kv.local import LEASE_S, Found

RENEW_S: Final = 0.75 * LEASE_S
"""An answer older than this is asked for anew: a request may wait long for room, and its lease ends."""


class Stage(Enum):
    """How far a request's one attempt has come."""

    ASKED = "asked"
    OFFERED = "offered"
    LOADING = "loading"
    SPENT = "spent"


class Verdict(NamedTuple):
    """What to tell the scheduler."""

    blocks: int | None
    """To be loaded beyond what is computed; `None`: ask again at the next step."""
    reason: str = ""
    """Why there are none; `""` while there are some, or while nothing is known."""
    renew: bool = False
    """The answer is too old: ask the agent anew."""


class Order(NamedTuple):
    """What to load: the prompt's blocks from `first` on, into these blocks of the engine."""

    first: int
    block_ids: tuple[int, ...]


@dataclass(slots=True)
class _Attempt:
    tenant: str
    hashes: Sequence[BlockHash]
    stage: Stage
    found: Found | None = None
    found_at: float = 0.0
    computed: int = 0
    offered: int = 0
    order: Order | None = None
    loaded: int = 0
    """Of the order's blocks, from the first on, as far as is known."""


class Offers:
    """The attempts of all requests that are alive."""

    __slots__ = ("_attempts", "_failures", "_headroom", "_min_blocks")

    def __init__(self, *, min_blocks: int, headroom: float) -> None:
        self._min_blocks = max(1, min_blocks)
        self._headroom = headroom
        self._attempts: dict[str, _Attempt] = {}
        self._failures = Failures()

    def __len__(self) -> int:
        return len(self._attempts)

    def stage(self, request: str) -> Stage | None:
        """`None`: the request is not known."""
        attempt = self._attempts.get(request)
        return None if attempt is None else attempt.stage

    def found(self, request: str) -> Found | None:
        """What the agent answered, where that was looked at."""
        attempt = self._attempts.get(request)
        return None if attempt is None else attempt.found

    def arrive(self, request: str, tenant: str, hashes: Sequence[BlockHash]) -> bool:
        """A request whose loadable blocks have these hashes; whether the agent is to be asked."""
        if request in self._attempts:
            return False
        worth = len(hashes) >= self._min_blocks
        self._attempts[request] = _Attempt(tenant, hashes, Stage.ASKED if worth else Stage.SPENT)
        return worth

    def offer(
        self, request: str, *, computed: int, found: Found | None, room: int | None, now: float
    ) -> Verdict:
        """What may be loaded beyond `computed` blocks.

        `found` is the agent's answer, `None` while there is none; `room` counts the engine's blocks that are
        free or can be evicted, `None` if nobody knows.
        """
        attempt = self._attempts.get(request)
        if attempt is None or attempt.stage in (Stage.LOADING, Stage.SPENT):
            return Verdict(0, "spent")
        if len(attempt.hashes) - computed < self._min_blocks:
            return self._spend(attempt, "local")
        if found is None:
            return Verdict(None)
        if found is not attempt.found:
            attempt.found, attempt.found_at = found, now
        elif now - attempt.found_at > RENEW_S:
            attempt.stage, attempt.found = Stage.ASKED, None
            return Verdict(None, renew=True)
        had = min(found.blocks, len(attempt.hashes))
        sound = self._failures.sound(found.tenant, attempt.hashes, had, now)
        count = sound - computed
        if count < self._min_blocks:
            if found.blocks - computed >= self._min_blocks:
                return self._spend(attempt, "failed-before")
            return self._spend(attempt, found.reason or "absent")
        if room is not None and room < ceil(self._headroom * count):
            return self._spend(attempt, "headroom")
        attempt.stage, attempt.computed, attempt.offered = Stage.OFFERED, computed, count
        return Verdict(count)

    def begin(self, request: str, count: int, block_ids: Sequence[int]) -> Order | None:
        """The scheduler took `count` blocks of the offer, and gave the request these blocks of the engine, in
        the prompt's order. `None`: there is no such offer; a count of 0 declines it.
        """
        attempt = self._attempts.get(request)
        if attempt is None or attempt.stage is not Stage.OFFERED:
            return None
        attempt.stage = Stage.SPENT
        first = attempt.computed
        if not 0 < count <= attempt.offered or len(block_ids) < first + count:
            return None
        attempt.stage = Stage.LOADING
        attempt.order = Order(first, tuple(block_ids[first : first + count]))
        attempt.loaded = count
        return attempt.order

    def failed(self, block_ids: Set[int], now: float) -> None:
        """The engine's blocks that a worker could not load."""
        if not block_ids:
            return
        for attempt in self._attempts.values():
            order = attempt.order
            if attempt.stage is not Stage.LOADING or order is None:
                continue
            # What comes after the first that failed was not loaded for its sake.
            at = next((at for at, block in enumerate(order.block_ids) if block in block_ids), None)
            if at is not None and attempt.found is not None:
                attempt.loaded = min(attempt.loaded, at)
                bad = attempt.hashes[order.first + at]
                self._failures.add(attempt.found.tenant, (bad,), now)

    def loaded(self, request: str) -> range | None:
        """The load is over: the prompt's blocks that came of it. `None`: there was no load."""
        attempt = self._attempts.get(request)
        if attempt is None or attempt.stage is not Stage.LOADING or attempt.order is None:
            return None
        first = attempt.order.first
        attempt.stage, attempt.order = Stage.SPENT, None
        return range(first, first + attempt.loaded)

    def end(self, request: str) -> Stage | None:
        """The request is over; how far its attempt had come."""
        attempt = self._attempts.pop(request, None)
        return None if attempt is None else attempt.stage

    def _spend(self, attempt: _Attempt, reason: str) -> Verdict:
        attempt.stage = Stage.SPENT
        return Verdict(0, reason)
