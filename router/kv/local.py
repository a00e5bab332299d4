"""An engine's side of the local protocol: a client for the scheduler and one for each worker.

Runs inside the engine: standard library and msgspec only, no threads, no event loop. Every call returns at
once and none raises for what the agent does or fails to do. Time is an argument, in seconds of a monotonic
clock. `docs/kv-protocol.md` says what is exchanged.
"""

import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from router.kv import messages as m
from router.kv.arena import Arena, ArenaFault, Handle, pack_handles, unpack_handles
from router.kv.keys import BlockHash, Namespace, pack_hashes, unpack_hashes
from router.kv.wire import Decoder, Type, WireFault, encode

LEASE_S: Final = 2.0
"""How long what an answer offers stays, before `load` asks for it."""
ANSWER_S: Final = 0.020
"""How long an answer is waited for, where nobody says otherwise."""
END_SLACK_S: Final = 0.25
"""How long after a load's deadline its end comes at the latest."""

_RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_FULL_S: Final = 0.05  # until a full arena is asked for slots again
_ATTACH_S: Final = 30.0  # an arena of many GiB takes its time to be made
_READ: Final = 1 << 18
_READS: Final = 16
_UNSENT: Final = 8 << 20
_HELD: Final = 200_000
_UNCLAIMED: Final = 1024


class Found(NamedTuple):
    """What of a prefix can be had, from its first block on."""

    blocks: int
    local: int
    """How many of them lie in this machine's arena."""
    tenant: str
    """Whose blocks they are, and whose the request's new blocks are."""
    stall_s: float
    deadline_s: float
    system_blocks: int
    """How many of the prompt's first blocks are system prompt and tool schemas."""
    reason: str = ""
    """Why there are fewer than there might be; `""`: there are no more."""


class Landed(NamedTuple):
    """A block of a load that can be copied into the engine."""

    block: int
    """0: the first that `load` asked for."""
    handle: Handle


class LoadEnd(NamedTuple):
    """A load's end: blocks 0 to `blocks` landed, no others will."""

    blocks: int
    reason: str


class NewBlock(NamedTuple):
    """A block of the engine to be stored."""

    handle: Handle
    hash: BlockHash
    parent: BlockHash


class _Link:
    """A connection that mends itself: non-blocking, with bounded buffers."""

    __slots__ = ("_attach", "_decoder", "_due", "_failures", "_lost", "_path", "_since", "_socket", "_take",
                 "_unsent", "attached", "refusal")  # fmt: skip

    def __init__(
        self, path: str, attach: m.Attach, take: Callable[[Type, m.Message], None], lost: Callable[[], None]
    ) -> None:
        self._path = path
        self._attach = attach
        self._take = take
        self._lost = lost
        self._socket: socket.socket | None = None
        self._decoder = Decoder(m.MAX_META, None)
        self._unsent = bytearray()
        self._failures = 0
        self._due = float("-inf")
        self._since = 0.0
        self.attached = False
        self.refusal: str | None = None

    def poll(self, now: float) -> None:
        if self._socket is None:
            if now < self._due:
                return
            self._connect(now)
        if self._socket is not None:
            self._write(now)
            self._read(now)
        if self._socket is not None and not self.attached and now - self._since > _ATTACH_S:
            self.drop(now)

    def send(self, kind: Type, message: m.Message) -> None:
        """Queue it and try to send; lost where there is no connection.

        Before the agent has answered, it is told who is here and nothing else: what an earlier connection
        said is gone with it.
        """
        if self._socket is None or not (self.attached or kind is Type.ATTACH):
            return
        self._unsent += encode(kind, 0, m.pack(message), checksum=None)
        self._write(None)

    def drop(self, now: float) -> None:
        """End the connection; `poll` makes a new one after a while."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        self._due = now + _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
        self._failures += 1
        self.attached = False
        self._lost()

    def close(self) -> None:
        self.drop(0.0)
        self._due = float("inf")

    def _connect(self, now: float) -> None:
        self._decoder = Decoder(m.MAX_META, None)
        self._unsent.clear()
        self._since = now
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            made.connect(self._path)
        except OSError:  # nobody there, or so many that the backlog is full
            made.close()
            self._due = now + _RETRY_S[min(self._failures, len(_RETRY_S) - 1)]
            self._failures += 1
            return
        self._socket = made
        self.send(Type.ATTACH, self._attach)

    def _write(self, now: float | None) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if len(self._unsent) <= _UNSENT:
                return
        except OSError:
            pass
        else:
            return
        # `poll` notices the end of a connection and has the time for it.
        if now is not None:
            self.drop(now)

    def _read(self, now: float) -> None:
        for _ in range(_READS):
            if self._socket is None:
                return
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.drop(now)
                return
            try:
                for frame in self._decoder.feed(data):
                    self._frame(frame.type, frame.meta, now)
            except (WireFault, ValueError):
                self.drop(now)
                return
            if len(data) < _READ:
                return

    def _frame(self, kind: Type, meta: bytes, now: float) -> None:
        message = m.read(kind, meta)
        if isinstance(message, m.Refused):
            self.refusal = message.text
            self._failures = len(_RETRY_S)
            self.drop(now)
            return
        if isinstance(message, m.Attached):
            self._failures = 0
            self.refusal = None
            self.attached = True
        self._take(kind, message)


@dataclass(slots=True)
class _Asked:
    """A question on its way, or answered."""

    tenant: str
    hashes: Sequence[BlockHash]
    since: float
    found: Found | None = None


class SchedulerClient:
    """The scheduler's side. One at a time for each engine."""

    def __init__(
        self,
        path: str,
        *,
        engine: str,
        namespace: Namespace,
        part_bytes: int,
        slots_wanted: int = 64,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`answer_s`: how long an answer is waited for."""
        attach = m.Attach("scheduler", engine, 0, namespace.as_dict(), part_bytes)
        self._link = _Link(path, attach, self._take, self._lost)
        self._slots_wanted = slots_wanted
        self._answer_s = answer_s
        self._slots: list[Handle] = []
        self._asking = False
        self._ask_again = float("-inf")
        self._asked: dict[str, _Asked] = {}
        self._held: OrderedDict[tuple[str, BlockHash], None] = OrderedDict()
        self._stats: Mapping[str, float] = {}
        # Ids of an engine that was started anew must not meet those of the one before.
        self._next_load = secrets.randbits(31) << 32
        self._now = 0.0

    @property
    def connected(self) -> bool:
        """Whether the agent is there and serves this engine."""
        return self._link.attached

    @property
    def refusal(self) -> str | None:
        """Why the agent does not serve this engine: it names the field that differs."""
        return self._link.refusal

    @property
    def stats(self) -> Mapping[str, float]:
        """The agent's figures, at most a second old; empty while it is not there."""
        return self._stats

    def poll(self, now: float) -> None:
        """Connect, send and read what can be without waiting. Call it every step."""
        self._now = now
        self._link.poll(now)
        for asked in self._asked.values():
            if asked.found is None and now - asked.since > self._answer_s:
                asked.found = _nothing(asked.tenant, "timeout")
        self._refill()

    def ask(
        self,
        request: str,
        tenant: str,
        hashes: Sequence[BlockHash],
        *,
        hint: dict[str, Any] | None,
        now: float,
    ) -> None:
        """Ask how much of a prefix can be had. Once for each request, until `forget`."""
        if request in self._asked:
            return
        asked = self._asked[request] = _Asked(tenant, tuple(hashes), now)
        if not self.connected:
            asked.found = _nothing(tenant, "disconnected")
            return
        try:
            patience_ms = round(self._answer_s * 1000)
            self._link.send(Type.ASK, m.Ask(request, tenant, pack_hashes(hashes), hint, patience_ms))
        except (TypeError, ValueError, OverflowError):  # a hint that msgpack cannot say
            asked.found = _nothing(tenant, "hint:malformed")

    def answer(self, request: str) -> Found | None:
        """What was found; `None` while it is not known, for `answer_s` at most, or was never asked."""
        asked = self._asked.get(request)
        return None if asked is None else asked.found

    def forget(self, request: str) -> None:
        """The answer is not wanted any more, or used up."""
        if self._asked.pop(request, None) is not None:
            self._link.send(Type.FORGET, m.OfRequest(request))

    def load(
        self, request: str, *, first: int, count: int, stall_s: float, deadline_s: float, now: float
    ) -> int | None:
        """Start to bring blocks `first` to `first + count` of what was asked; `None`: nothing will come."""
        if request not in self._asked or not self.connected or count < 1:
            return None
        load, self._next_load = self._next_load, self._next_load + 1
        limits = (round(stall_s * 1000), round(deadline_s * 1000))
        self._link.send(Type.LOAD, m.Load(request, load, first, count, *limits))
        self._now = now
        return load

    def cancel(self, load: int) -> None:
        """The load is not wanted any more; its end comes to the workers."""
        self._link.send(Type.ABORT, m.Abort(load))

    def take_slots(self, count: int) -> list[Handle]:
        """Up to `count` slots to store blocks in."""
        taken, self._slots = self._slots[:count], self._slots[count:]
        self._refill()
        return taken

    def store(
        self,
        request: str,
        tenant: str,
        zone: Literal["system", "session"],
        blocks: Sequence[NewBlock],
        *,
        session: str,
    ) -> None:
        """Say what slots hold, or will hold once every worker has written."""
        if not blocks or not self.connected:
            return
        handles, hashes, parents = zip(*blocks, strict=True)
        packed = (pack_handles(handles), pack_hashes(hashes), pack_hashes(parents))
        self._link.send(Type.STORE, m.Store(request, tenant, zone, session, *packed))
        self._remember(tenant, hashes)

    def drop(self, handles: Sequence[Handle]) -> None:
        """Give slots back that were taken and are not used."""
        if handles:
            self._link.send(Type.DROP, m.Handles(pack_handles(handles)))

    def holds(self, tenant: str, hash_: BlockHash) -> bool:
        """Whether the agent is known to hold a block. Not knowing is not absence."""
        return (tenant, hash_) in self._held

    def finished(self, request: str) -> None:
        """The request is over."""
        self._asked.pop(request, None)
        self._link.send(Type.FINISHED, m.OfRequest(request))

    def close(self) -> None:
        """End the connection for good."""
        self._link.close()

    def _take(self, kind: Type, message: m.Message) -> None:
        match message:
            case m.Answer():
                self._answered(message)
            case m.Handles() if kind is Type.SLOTS:
                handles = unpack_handles(message.handles)
                self._slots += handles
                self._asking = False
                self._ask_again = self._now + (0.0 if handles else _FULL_S)
            case m.Gone():
                for hash_ in unpack_hashes(message.hashes):
                    self._held.pop((message.tenant, hash_), None)
            case m.Stats():
                self._stats = message.figures
            case _:
                pass

    def _answered(self, answer: m.Answer) -> None:
        asked = self._asked.get(answer.request)
        if asked is None or asked.found is not None:
            return
        asked.found = Found(
            min(answer.blocks, len(asked.hashes)),
            answer.local,
            answer.tenant,
            answer.stall_ms / 1000,
            answer.deadline_ms / 1000,
            answer.system_blocks,
            answer.reason,
        )
        self._remember(answer.tenant, asked.hashes[: answer.local])

    def _remember(self, tenant: str, hashes: Sequence[BlockHash]) -> None:
        for hash_ in hashes:
            self._held[tenant, hash_] = None
        while len(self._held) > _HELD:
            self._held.popitem(last=False)

    def _refill(self) -> None:
        missing = self._slots_wanted - len(self._slots)
        if (
            self.connected
            and not self._asking
            and missing > self._slots_wanted // 2
            and self._now >= self._ask_again
        ):
            self._asking = True
            self._link.send(Type.RESERVE, m.Reserve(missing))

    def _lost(self) -> None:
        self._slots.clear()
        self._asking = False
        self._ask_again = float("-inf")
        self._held.clear()
        self._stats = {}
        for asked in self._asked.values():
            asked.found = asked.found or _nothing(asked.tenant, "disconnected")


@dataclass(slots=True)
class _Loading:
    """A load as a worker sees it."""

    until: float | None = None
    """`None` until it is expected."""
    landed: int = 0
    """How many have come."""
    waiting: list[Landed] = field(default_factory=list)
    """Those that `landed` has not given out."""
    end: LoadEnd | None = None


class WorkerClient:
    """A worker's side. One for each rank."""

    def __init__(self, path: str, *, engine: str, rank: int, namespace: Namespace, part_bytes: int) -> None:
        self.rank = rank
        self.arena: Arena | None = None
        """Mapped once connected, and kept when the agent is lost: what has landed can still be copied."""
        self._link = _Link(
            path, m.Attach("worker", engine, rank, namespace.as_dict(), part_bytes), self._take, self._lost
        )
        self._loads: OrderedDict[int, _Loading] = OrderedDict()
        self._now = 0.0

    @property
    def connected(self) -> bool:
        """Whether the agent is there and its arena is mapped."""
        return self._link.attached and self.arena is not None

    @property
    def refusal(self) -> str | None:
        """Why the agent does not serve this engine."""
        return self._link.refusal

    def poll(self, now: float) -> None:
        """Connect, send and read what can be without waiting. Call it every step."""
        self._now = now
        self._link.poll(now)
        for load, loading in tuple(self._loads.items()):
            if loading.end is None and loading.until is not None and now > loading.until:
                self._end(load, loading, "deadline")

    def expect(self, load: int, *, count: int, deadline_s: float, now: float) -> None:
        """A load begins. From here on it has an end."""
        loading = self._loads.setdefault(load, _Loading())
        self._loads.move_to_end(load)
        loading.until = now + deadline_s + END_SLACK_S
        if loading.end is None and (not self.connected or count < 1):
            self._end(load, loading, "disconnected")

    def landed(self, load: int) -> list[Landed]:
        """Blocks that have come since the last call, in order and without a gap."""
        loading = self._loads.get(load)
        if loading is None:
            return []
        blocks, loading.waiting = loading.waiting, []
        return blocks

    def copied(self, load: int, upto: int) -> None:
        """Blocks 0 to `upto`, that one not counted, are in the engine."""
        self._link.send(Type.COPIED, m.Copied(load, upto))

    def ended(self, load: int) -> LoadEnd | None:
        """The load's end, once `landed` has given out all that came."""
        loading = self._loads.get(load)
        return None if loading is None or loading.waiting else loading.end

    def forget(self, load: int) -> None:
        """Nothing more of this load is wanted."""
        if (loading := self._loads.pop(load, None)) is not None:
            self._link.send(Type.COPIED, m.Copied(load, loading.landed, done=True))

    def written(self, handles: Sequence[Handle]) -> None:
        """This rank's parts of these blocks are complete."""
        if handles:
            self._link.send(Type.WRITTEN, m.Handles(pack_handles(handles)))

    def close(self) -> None:
        """End the connection for good and unmap the arena."""
        self._link.close()
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    def _take(self, _kind: Type, message: m.Message) -> None:
        match message:
            case m.Attached():
                self._map(message)
            case m.LandedBlocks():
                loading = self._loading(message.load)
                if loading.end is None and message.index == loading.landed:
                    for handle in unpack_handles(message.handles):
                        loading.waiting.append(Landed(loading.landed, handle))
                        loading.landed += 1
            case m.Ended():
                loading = self._loading(message.load)
                if loading.end is None:
                    loading.end = LoadEnd(loading.landed, message.reason)
            case _:
                pass

    def _loading(self, load: int) -> _Loading:
        """The load, also one whose metadata is still on its way to this worker."""
        loading = self._loads.setdefault(load, _Loading())
        if len(self._loads) > _UNCLAIMED:
            unclaimed = next((key for key, found in self._loads.items() if found.until is None), None)
            if unclaimed is not None and unclaimed != load:
                self.forget(unclaimed)
        return loading

    def _map(self, message: m.Attached) -> None:
        # An earlier one stays mapped for as long as somebody holds a piece of it.
        self.arena = None
        try:
            self.arena = Arena.attach(message.arena, message.identity)
        except ArenaFault as error:
            self._link.refusal = str(error)
            self._link.drop(self._now)

    def _end(self, load: int, loading: _Loading, reason: str) -> None:
        loading.end = LoadEnd(loading.landed, reason)
        self._link.send(Type.ABORT, m.Abort(load))

    def _lost(self) -> None:
        for load in [key for key, loading in self._loads.items() if loading.until is None]:
            del self._loads[load]
        for loading in self._loads.values():
            loading.end = loading.end or LoadEnd(loading.landed, "disconnected")


def _nothing(tenant: str, reason: str) -> Found:
    return Found(0, 0, tenant, 0.0, 0.0, 0, reason)
