"""The connector in a worker: copies what landed into the engine, and what was computed into the arena.

Called between steps by the engine's own thread; nothing here waits. Time is an argument.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from router.connector.copying import Copies, Pair
from router.connector.figures import Counting
from router.connector.loads import Load, Loads
from router.connector.orders import Orders, SaveOrder
from router.kv.arena import Handle, StaleHandle
from router.kv.keys import Namespace
from router.kv.local import Landed, WorkerClient

COPY_BYTES: Final = 64 << 20
"""At most so much is copied into the engine between two steps: running requests wait for it."""


class _Copy(NamedTuple):
    """Blocks of a load on their way from the arena."""

    first: int
    """The first one's place in the load."""
    handles: Sequence[Handle]
    is_done: Callable[[], bool]


class _Save(NamedTuple):
    """Blocks on their way into the arena."""

    handles: Sequence[Handle]
    is_done: Callable[[], bool]


class WorkerSide:
    """One worker's part of all loads and saves."""

    def __init__(
        self, connect: Callable[[Namespace], WorkerClient], *, rank: int, counting: Counting
    ) -> None:
        self._connect = connect
        self._rank = rank
        self._counting = counting
        self._client: WorkerClient | None = None
        self._namespace: Namespace | None = None
        self._copies: Copies | None = None
        self._loads = Loads()
        self._landed: dict[str, deque[Landed]] = {}
        self._copying: dict[str, deque[_Copy]] = {}
        self._saving: list[_Save] = []
        self._copies_a_step = 1

    @property
    def ready(self) -> bool:
        """Whether blocks can be saved here."""
        return self._copies is not None and self._client is not None and self._client.connected

    def register(self, copies: Copies, part_bytes: int) -> None:
        """The engine's caches are there."""
        self._copies = copies
        self._copies_a_step = max(1, COPY_BYTES // part_bytes)

    def start(self, orders: Orders, now: float) -> None:
        """A step's orders. Every load in them is reported by `finished`, once, whatever happens here."""
        begun = [order for order in orders.loads if self._loads.begin(order, now)]
        if len(begun) < len(orders.loads):
            self._counting.add("faults", len(orders.loads) - len(begun), label="second-load")
        if orders.namespace is not None and orders.namespace != self._namespace:
            self._meet(orders.namespace)
        client = self._client
        for order in begun:
            if client is None or order.load is None:
                self._loads.end(order.request, "disconnected", now)
                continue
            self._landed[order.request] = deque()
            self._copying[order.request] = deque()
            client.expect(order.load, count=len(order.block_ids), deadline_s=order.deadline_s, now=now)

    def save(self, saves: Sequence[SaveOrder]) -> None:
        """Copy these blocks once the step has computed them."""
        arena = None if self._client is None else self._client.arena
        if not saves or arena is None or self._copies is None:
            return
        pairs, handles = [], []
        for block_id, handle in saves:
            try:
                pairs.append(Pair(block_id, arena.part(handle, self._rank)))
            except StaleHandle:  # the agent was started anew meanwhile
                continue
            handles.append(handle)
        if pairs:
            self._saving.append(_Save(handles, self._copies.save(pairs)))
            self._counting.add("saved_blocks", len(pairs))

    def advance(self, now: float) -> None:
        """Whatever can be done at once: read what came, copy, say what is complete."""
        client = self._client
        if client is not None:
            client.poll(now)
            self._tell_saved(client)
            budget = self._copies_a_step
            for load in self._loads.active:
                budget -= self._advance(load, client, budget, now)
        for load in self._loads.overdue(now):
            self._wind_up(load, "overdue", now)

    def finished(self) -> tuple[set[str], set[int]]:
        """The requests whose loads ended since the last call, and the engine's blocks that hold nothing."""
        requests: set[str] = set()
        missing: set[int] = set()
        for outcome in self._loads.take_ended():
            requests.add(outcome.request)
            missing.update(outcome.missing)
            self._counting.add("loads", label=outcome.reason)
            self._counting.observe("load_seconds", outcome.seconds)
            for name, count in (("loaded_blocks", outcome.loaded), ("missing_blocks", len(outcome.missing))):
                if count:
                    self._counting.add(name, count)
        return requests, missing

    def give_up(self, now: float) -> None:
        """Something is broken: end every load, so that the engine computes. One that is being copied ends
        when its copies are complete: at a later call, of this or of `advance`."""
        for load in self._loads.active:
            self._wind_up(load, "fault", now)

    def close(self) -> None:
        """The engine is stopping."""
        if self._client is not None:
            self._client.close()

    def _meet(self, namespace: Namespace) -> None:
        self._namespace = namespace
        if self._client is not None:
            self._client.close()
        self._client = self._connect(namespace)

    def _tell_saved(self, client: WorkerClient) -> None:
        while self._saving and self._saving[0].is_done():
            client.written(self._saving.pop(0).handles)

    def _advance(self, load: Load, client: WorkerClient, budget: int, now: float) -> int:
        """One load; how many blocks were copied."""
        request, name = load.order.request, load.order.load
        if name is None:
            return 0
        landed, copying = self._landed[request], self._copying[request]
        landed.extend(client.landed(name))
        started = self._start_copies(load, landed, client, budget)
        arena = client.arena
        while copying and copying[0].is_done():
            copy = copying.popleft()
            # A slot that was given away meanwhile may have been copied half old, half new.
            sound = 0 if arena is None else leading(map(arena.is_current, copy.handles))
            if copy.first == load.copied and sound:
                load.copied += sound
                client.copied(name, load.copied)
            load.stale = load.stale or sound < len(copy.handles)
        if copying:  # what is still being written must not be given back to the engine
            return started
        end = client.ended(name)
        if load.given_up is not None:
            self._end(load, load.given_up, now)
        elif load.stale:
            self._end(load, "evicted", now)
        elif load.copied == len(load.order.block_ids):
            self._end(load, "done", now)
        elif end is not None and not landed:
            self._end(load, end.reason, now)
        return started

    def _start_copies(self, load: Load, landed: deque[Landed], client: WorkerClient, budget: int) -> int:
        arena, copies = client.arena, self._copies
        if load.stale or load.given_up is not None or arena is None or copies is None:
            return 0
        pairs: list[Pair] = []
        handles: list[Handle] = []
        first = landed[0][0] if landed else 0
        while landed and len(pairs) < budget:
            place, handle = landed.popleft()
            try:
                pairs.append(Pair(load.order.block_ids[place], arena.part(handle, self._rank)))
            except StaleHandle:
                load.stale = True
                break
            handles.append(handle)
        if pairs:
            self._copying[load.order.request].append(_Copy(first, handles, copies.load(pairs)))
        return len(pairs)

    def _wind_up(self, load: Load, reason: str, now: float) -> None:
        """End it as soon as nothing is being written to the engine's blocks: they are given back with its
        end, and what is copied later would fall into another request's."""
        load.given_up = load.given_up or reason
        copying = self._copying.get(load.order.request)
        while copying and _is_over(copying[0]):
            copying.popleft()
        if not copying:
            self._end(load, load.given_up, now)

    def _end(self, load: Load, reason: str, now: float) -> None:
        request, name = load.order.request, load.order.load
        self._loads.end(request, reason, now)
        self._landed.pop(request, None)
        self._copying.pop(request, None)
        if name is not None and self._client is not None:
            self._client.forget(name)


def _is_over(copy: _Copy) -> bool:
    try:
        return copy.is_done()
    except Exception:  # noqa: BLE001 - a device that cannot even be asked writes nothing more
        return True


def leading(answers: Iterable[bool]) -> int:
    """How many of them are true, from the first on."""
    return sum(1 for _ in takewhile(bool, answers))
