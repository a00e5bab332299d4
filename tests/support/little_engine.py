"""The connector's two sides between a little scheduler with vLLM's rules and a little agent that may do
anything.

A block's content is its hash, so that every copy can be checked. The scheduler refuses what would end vLLM: a
report for a request that it does not know, or a second one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from router.connector.copying import Pair
from router.connector.figures import Counting
from router.connector.scheduler_side import Progress, Prompt, SchedulerSide
from router.connector.settings import Settings
from router.connector.worker_side import WorkerSide
from router.kv.arena import Handle, StaleHandle
from router.kv.keys import BlockHash, Namespace
from router.kv.local import Found, Landed, LoadEnd, NewBlock

BLOCK_TOKENS = 64
NOWHERE = b"\0" * 32

NAMESPACE = Namespace(
    model="m", revision="r", tokenizer="t", kv_dtype="float32", block_size=BLOCK_TOKENS, block_bytes=32,
    layout="l", backend="b", instruction_set="i", layers=1, kv_heads=1, head_dim=1, tp_size=1, pp_size=1,
    ranks="0", hash_algorithm="h", hash_seed="s",
)  # fmt: skip


def chain(family: int, length: int) -> list[BlockHash]:
    """The hashes of a prompt's blocks; prompts of one family begin alike."""
    return [BlockHash(bytes([family, place]).ljust(32, b".")) for place in range(length)]


@dataclass
class LittleArena:
    """Slots with generations."""

    slots: list[bytearray] = field(default_factory=lambda: [bytearray(32) for _ in range(64)])
    generations: list[int] = field(default_factory=lambda: [0] * 64)
    free: list[int] = field(default_factory=lambda: list(range(64)))

    def put(self, content: bytes) -> Handle | None:
        if not self.free:
            return None
        slot = self.free.pop()
        self.generations[slot] += 1
        self.slots[slot][:] = content
        return Handle(slot, self.generations[slot])

    def give_back(self, handle: Handle) -> None:
        if self.is_current(handle):
            self.generations[handle.slot] += 1
            self.slots[handle.slot][:] = b"\xee" * 32
            self.free.append(handle.slot)

    def is_current(self, handle: Handle) -> bool:
        return self.generations[handle.slot] == handle.generation

    def part(self, handle: Handle, _rank: int) -> memoryview:
        if not self.is_current(handle):
            raise StaleHandle
        return memoryview(self.slots[handle.slot])


@dataclass
class LittleLoad:
    hashes: Sequence[BlockHash]
    handles: list[Handle] = field(default_factory=list)
    given: int = 0
    end: str | None = None
    expected: bool = False


class LittleAgent:
    """Both clients and the agent behind them. What it does is up to whoever holds it."""

    def __init__(self) -> None:
        self.arena: LittleArena = LittleArena()
        self.connected = True
        self.refusal: str | None = None
        self.stats: dict[str, float] = {"blocks": 1.0}
        self.asked: dict[str, Sequence[BlockHash]] = {}
        self.answers: dict[str, Found] = {}
        self.loads: dict[int, LittleLoad] = {}
        self.held: dict[tuple[str, BlockHash], Handle] = {}
        self.reserved: list[Handle] = []
        self.stored: dict[Handle, tuple[str, NewBlock]] = {}
        self.cancelled: set[int] = set()
        self.over: list[str] = []
        self.questions = 0

    # What the agent does.

    def say(self, request: str, blocks: int) -> None:
        if request in self.asked and request not in self.answers:
            blocks = min(blocks, len(self.asked[request]))
            self.answers[request] = Found(blocks, 0, "t", 0.1, 1.0, 1, "")

    def land(self, load: LittleLoad, blocks: int) -> None:
        for hash_ in load.hashes[len(load.handles) : len(load.handles) + blocks]:
            if load.end is not None or (handle := self.arena.put(hash_)) is None:
                return
            load.handles.append(handle)

    def die(self) -> None:
        self.connected = False
        self.held.clear()
        self.reserved.clear()
        self.answers.update({request: Found(0, 0, "t", 0, 0, 0, "disconnected") for request in self.asked})
        for load in self.loads.values():
            load.end = load.end or "disconnected"

    # The scheduler's client.

    def poll(self, now: float) -> None:
        pass

    def ask(self, request: str, tenant: str, hashes: Sequence[BlockHash], *, hint: Any, now: float) -> None:
        assert request not in self.asked
        self.questions += 1
        self.asked[request] = hashes
        if not self.connected:
            self.answers[request] = Found(0, 0, tenant, 0, 0, 0, "disconnected")

    def answer(self, request: str) -> Found | None:
        return self.answers.get(request)

    def forget(self, name: Any) -> None:
        if isinstance(name, int):
            load = self.loads.pop(name, None)
            for handle in load.handles if load else ():
                self.arena.give_back(handle)
            return
        self.asked.pop(name, None)
        self.answers.pop(name, None)

    def load(
        self, request: str, *, first: int, count: int, stall_s: float, deadline_s: float, now: float
    ) -> int | None:
        if request not in self.asked or not self.connected:
            return None
        name = len(self.loads) + 1000 + self.questions * 100
        while name in self.loads:
            name += 1
        hashes = self.asked[request][first : first + count]
        assert len(hashes) == count
        self.loads[name] = LittleLoad(hashes)
        return name

    def cancel(self, load: int) -> None:
        self.cancelled.add(load)

    def take_slots(self, count: int) -> list[Handle]:
        taken, self.reserved = self.reserved[:count], self.reserved[count:]
        return taken

    def store(
        self, request: str, tenant: str, zone: str, blocks: Sequence[NewBlock], *, session: str
    ) -> None:
        for block in blocks:
            self.stored[block.handle] = (tenant, block)

    def holds(self, tenant: str, hash_: BlockHash) -> bool:
        return (tenant, hash_) in self.held

    def finished(self, request: str) -> None:
        self.over.append(request)
        self.forget(request)

    def close(self) -> None:
        pass

    # A worker's client.

    def expect(self, load: int, *, count: int, deadline_s: float, now: float) -> None:
        if load in self.loads:
            self.loads[load].expected = True
        else:
            self.loads[load] = LittleLoad((), end="disconnected", expected=True)

    def landed(self, load: int) -> list[Landed]:
        one = self.loads[load]
        new = [Landed(place, one.handles[place]) for place in range(one.given, len(one.handles))]
        one.given = len(one.handles)
        return new

    def ended(self, load: int) -> LoadEnd | None:
        one = self.loads[load]
        return None if one.end is None or one.given < len(one.handles) else LoadEnd(one.given, one.end)

    def copied(self, load: int, upto: int) -> None:
        pass

    def written(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            tenant, block = self.stored.pop(handle)
            if self.arena.is_current(handle):
                assert bytes(self.arena.slots[handle.slot]) == block.hash, (
                    "a block was saved under another's name"
                )
                self.held[tenant, block.hash] = handle


@dataclass
class LittleRequest:
    name: str
    hashes: list[BlockHash]
    local: int
    """Blocks that the engine's own cache has when it is first looked at."""
    length: int
    """Blocks at its end, with what it generates."""
    computed: int = 0
    block_ids: list[int] = field(default_factory=list)
    state: str = "waiting"
    known: int = 0

    @property
    def num_tokens(self) -> int:
        return self.known * BLOCK_TOKENS + 1


class LittleEngine:
    """A scheduler and a worker, with as much of vLLM's as the connector meets."""

    def __init__(self, blocks: int = 24, *, settings: Settings | None = None) -> None:
        self.agent = LittleAgent()
        self.counting = Counting()
        client = cast(Any, self.agent)
        self.scheduler = SchedulerSide(
            settings or Settings(), lambda _: client, block_size=BLOCK_TOKENS, counting=self.counting
        )
        self.worker = WorkerSide(lambda _: client, rank=0, counting=self.counting)
        self.worker.register(self, 32)
        self.scheduler.meet(NAMESPACE)
        self.scheduler.workers_ready(True)
        self.memory: dict[int, bytes] = {}
        self.free = list(range(1, blocks + 1))
        self.total = blocks
        self.requests: dict[str, LittleRequest] = {}
        self.ready: set[str] = set()
        self.now = 100.0
        self.slow: list[list[Callable[[], None]]] | None = None
        """Copies that arrive later; `None`: they arrive at once."""
        self.loaded_blocks = 0

    # Copies.

    def load(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        def copy() -> None:
            for block_id, part in pairs:
                self.memory[block_id] = bytes(part)

        return self._copy(copy)

    def save(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        for block_id, part in pairs:  # gathered at once, whenever it arrives
            part[:] = self.memory[block_id]
        return lambda: True

    def _copy(self, copy: Callable[[], None]) -> Callable[[], bool]:
        if self.slow is None:
            copy()
            return lambda: True
        waiting = [copy]
        self.slow.append(waiting)
        return lambda: not waiting

    def complete_copies(self) -> None:
        """What was begun arrives now."""
        for waiting in self.slow or ():
            for copy in waiting:
                copy()
            waiting.clear()

    # Requests.

    def add(self, name: str, family: int, prompt: int, local: int, output: int) -> None:
        request = LittleRequest(name, chain(family, prompt + output), min(local, prompt - 1), prompt + output)
        request.known = prompt
        self.requests[name] = request
        self.scheduler.arrive(self._prompt(request), self.now)

    def abort(self, name: str) -> None:
        request = self.requests[name]
        self.scheduler.finished(name)
        if request.state == "parked" and name not in self.ready:
            request.state = "aborted"  # its blocks are being written to: they are freed when that is over
            return
        self.ready.discard(name)
        self._free(request)
        del self.requests[name]

    def preempt(self, name: str) -> None:
        request = self.requests[name]
        self._free(request)
        request.state, request.computed, request.local = "waiting", 0, 0

    def step(self) -> None:
        """One turn of the engine's loop."""
        self.now += 0.001
        scheduled: dict[str, int] = {}
        for request in list(self.requests.values()):
            self._schedule(request, scheduled)
        progress = [
            Progress(name, upto, self.requests[name].hashes[: self.requests[name].known])
            for name, upto in scheduled.items()
        ]
        orders = self.scheduler.orders(progress, BLOCK_TOKENS * len(scheduled), self.now)
        for name, upto in scheduled.items():
            request = self.requests[name]
            for place in range(request.computed, upto):
                self.memory[request.block_ids[place]] = request.hashes[place]
            request.computed = upto
        self.worker.start(orders, self.now)
        self.worker.save(orders.saves)
        self.worker.advance(self.now)
        self._update(*self.worker.finished())

    def _schedule(self, request: LittleRequest, scheduled: dict[str, int]) -> None:
        if request.state == "parked" and request.name in self.ready:
            self.ready.discard(request.name)
            if request.computed == 0:
                self._free(request)
                request.state = "waiting"
            else:
                self._check(request)
                request.state = "running"
                self.scheduler.allocated(request.name, 0, (), self.now)
                self.scheduler.changed(request.name, request.block_ids, anew=True)
        if request.state == "waiting":
            self._admit(request)
        if request.state == "running":
            if request.computed >= request.known and request.known < request.length:
                request.known += 1
                if not self.free:
                    self.preempt(request.name)
                    return
                new = self.free.pop()
                request.block_ids.append(new)
                self.scheduler.changed(request.name, [new], anew=False)
            scheduled[request.name] = min(request.known, request.computed + 2)

    def _admit(self, request: LittleRequest) -> None:
        local = request.local
        count = self.scheduler.offer(self._prompt(request), computed=local, room=len(self.free), now=self.now)
        if count is None or len(self.free) < request.known:
            return
        assert local + count < request.known, "the last token is always computed"
        request.block_ids = [self.free.pop() for _ in range(request.known)]
        for place, block_id in enumerate(request.block_ids):
            self.memory[block_id] = request.hashes[place] if place < local else NOWHERE
        request.computed = local + count
        request.state = "parked" if count else "running"
        self.scheduler.allocated(request.name, count, request.block_ids if count else (), self.now)
        if not count:
            self.scheduler.changed(request.name, request.block_ids, anew=True)

    def _update(self, loaded: set[str], missing: set[int]) -> None:
        for request in self.requests.values():
            if request.state == "parked" and request.name not in self.ready:
                bad = [place for place in range(request.computed) if request.block_ids[place] in missing]
                request.computed = min([request.computed, *bad])
        self.scheduler.stepped(loaded, missing, self.now)
        for name in loaded:
            assert name in self.requests, "vLLM ends with an assertion here"
            request = self.requests[name]
            assert name not in self.ready, "reported twice"
            if request.state == "parked":
                self.ready.add(name)
                self.loaded_blocks += request.computed - request.local
            else:
                assert request.state == "aborted", "vLLM ends with an assertion here"
                self._free(request)
                del self.requests[name]
        for name in [name for name, one in self.requests.items() if one.state == "running"]:
            if self.requests[name].computed >= self.requests[name].length:
                self._check(self.requests[name])
                self.abort(name)

    def _check(self, request: LittleRequest) -> None:
        for place in range(request.computed):
            held = self.memory[request.block_ids[place]]
            assert held == request.hashes[place], f"{request.name}: block {place} holds {held!r}"

    def _free(self, request: LittleRequest) -> None:
        self.free += request.block_ids
        request.block_ids = []

    def _prompt(self, request: LittleRequest) -> Prompt:
        loadable = (request.num_tokens - 2) // BLOCK_TOKENS
        return Prompt(request.name, "t", request.hashes[: min(loadable, request.known - 1)], None, "")
