"""What frames say: one shape for each type, read strictly. Knows nothing of sockets.

Runs of hashes and of handles are single byte strings; unknown fields, wrong types and texts beyond their
bounds are refused.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from router.kv.codec import CodecName
from router.kv.keys import BlockHash, BlockKey, SpaceId
from router.kv.wire import Type, WireFault

MAX_META: Final = 4 << 20
"""Bytes of a frame's metadata: the hashes of 130,000 blocks."""
MAX_META_UNKNOWN: Final = 16 << 10
"""Before the other side has shown that it knows the secret."""

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Label = Annotated[str, Meta(max_length=256)]
Count = Annotated[int, Meta(ge=0, le=1 << 20)]
Millis = Annotated[int, Meta(ge=0, le=3_600_000)]
Sum = Annotated[int, Meta(ge=0)]  # msgpack has no greater number than 64 bits hold
Packed = Annotated[bytes, Meta(max_length=MAX_META)]
OneHash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Space = Annotated[bytes, Meta(min_length=16, max_length=16)]
Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
Fields = Annotated[dict[Label, str | int], Meta(max_length=64)]
ZoneName = Literal["system", "session"]
Role = Literal["agent", "gateway", "router"]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every shape."""


class Refused(Message, frozen=True):
    """The connection, or what was asked, is refused."""

    reason: Label
    """`secret`, `version`, `namespace`, `mode`, `busy`, `message`, `unknown`."""
    text: Annotated[str, Meta(max_length=1024)]


# Between agents, gateways and routers.


class Hello(Message, frozen=True):
    """Who dials."""

    name: Name
    role: Role
    nonce: Nonce


class Challenge(Message, frozen=True):
    """Who listens, and that it knows the secret."""

    name: Name
    nonce: Nonce
    proof: Nonce


class Proof(Message, frozen=True):
    """That the one who dials knows it, too."""

    proof: Nonce


class Welcome(Message, frozen=True):
    """The connection is accepted. `life` is drawn anew whenever the process starts."""

    life: Space


class Spaces(Message, frozen=True):
    """The namespaces whose blocks this side holds or uses; told whenever they change."""

    spaces: Annotated[list[Fields], Meta(max_length=64)]


class Blocks(Message, frozen=True):
    """QUERY: how many of these from the first on? FETCH: send them."""

    space: Space
    tenant: Label
    hashes: Packed


class FoundBlocks(Message, frozen=True):
    """So many of them, kept for a moment."""

    blocks: Count


class BlockHead(Message, frozen=True):
    """BLOCK: what the payload is. PUT: the same, to be kept."""

    space: Space
    tenant: Label
    hash: OneHash
    parent: OneHash
    checksum: Sum
    zone: ZoneName
    session: Label
    codec: CodecName = "raw"
    """How the payload is coded. `checksum` is of the bytes that were coded."""
    coded_checksum: Sum = 0
    """Of the payload, where it is coded."""

    @property
    def payload_checksum(self) -> int:
        """Of the payload as it travels and is kept."""
        return self.checksum if self.codec == "raw" else self.coded_checksum


class EndOf(Message, frozen=True):
    """END: so many blocks were sent, and why no more."""

    blocks: Count
    reason: Label


class Empty(Message, frozen=True):
    """CANCEL, PING, PONG: the head says it all."""


class OfferBlocks(Message, frozen=True):
    """Would these be kept? `checksums`: 8 bytes each, little-endian."""

    space: Space
    tenant: Label
    hashes: Packed
    parents: Packed
    checksums: Packed


class Wanted(Message, frozen=True):
    """A byte for each block: 1 = send it, 0 = there is no need."""

    wanted: Packed


class Kept(Message, frozen=True):
    """What became of a PUT."""

    outcome: Label


class OfBlock(Message, frozen=True):
    """SUSPECT: this block arrived damaged."""

    space: Space
    tenant: Label
    hash: OneHash


class OfSession(Message, frozen=True):
    """SESSION: which blocks? RELEASE: it is over."""

    tenant: Label
    session: Label


class Chain(Message, frozen=True):
    """A session's blocks, from the root on; the first `system_blocks` are in the system zone."""

    hashes: Packed
    system_blocks: Count


class Prefetch(Message, frozen=True):
    """Bring a session's blocks here, from the first of these sources that has them."""

    tenant: Label
    session: Label
    sources: Annotated[list[Name], Meta(max_length=64)]
    deadline_ms: Millis


class Done(Message, frozen=True):
    """What PREFETCH brought, or RELEASE let go."""

    blocks: Count
    size: Annotated[int, Meta(ge=0)]
    reason: Label


class Holdings(Message, frozen=True):
    """What has changed since that number of that life?"""

    life: Annotated[bytes, Meta(max_length=16)]
    since: Annotated[int, Meta(ge=0)]


class HeldSession(Message, frozen=True, array_like=True):
    """So many blocks of a session, which was active so long ago."""

    tenant: Label
    session: Label
    blocks: Count
    idle_s: float


class SourceState(Message, frozen=True, array_like=True):
    """A source as its user sees it."""

    name: Name
    state: Label
    bytes_per_s: float
    """Measured over its latest pulls; 0 = none yet."""
    pulls: Count
    """In progress."""


class Changes(Message, frozen=True):
    """What is held, or what of it has changed."""

    life: Space
    number: Annotated[int, Meta(ge=0)]
    complete: bool
    held: Annotated[list[HeldSession], Meta(max_length=1 << 20)]
    gone: Annotated[list[tuple[Label, Label]], Meta(max_length=1 << 20)]
    block_tokens: Count
    """0: no engine has been here yet."""
    blocks: Count
    capacity_blocks: Count
    sources: Annotated[list[SourceState], Meta(max_length=1024)]


# Between an engine and its agent.


class Attach(Message, frozen=True):
    """An engine's side shows up."""

    role: Literal["scheduler", "worker"]
    engine: Name
    rank: Count
    namespace: Fields
    part_bytes: Annotated[int, Meta(ge=1, le=1 << 32)]


class Attached(Message, frozen=True):
    """The engine is served from this arena."""

    arena: Annotated[str, Meta(max_length=4096)]
    identity: Annotated[bytes, Meta(min_length=16, max_length=16)]


class Ask(Message, frozen=True):
    """How much of this prefix can be had?"""

    request: Label
    tenant: Label
    hashes: Packed
    hint: dict[str, Any] | None = None
    patience_ms: Millis = 20
    """How long the engine waits for the answer."""


class Answer(Message, frozen=True):
    """So many blocks, from the first on."""

    request: Label
    blocks: Count
    local: Count
    tenant: Label
    stall_ms: Millis
    deadline_ms: Millis
    system_blocks: Count
    reason: Label = ""


class OfRequest(Message, frozen=True):
    """FORGET, FINISHED: a request's answer is used up; a request is over."""

    request: Label


class Load(Message, frozen=True):
    """Bring blocks `first` to `first + count` of what was asked."""

    request: Label
    load: int
    first: Count
    count: Count
    stall_ms: Millis
    deadline_ms: Millis


class LandedBlocks(Message, frozen=True):
    """The next blocks of a load lie in these slots."""

    load: int
    index: Count
    handles: Packed


class Ended(Message, frozen=True):
    """A load is over: nothing more lands."""

    load: int
    blocks: Count
    reason: Label


class Abort(Message, frozen=True):
    """A load is not wanted any more."""

    load: int


class Copied(Message, frozen=True):
    """Blocks below `upto` are in the engine; `done`: the worker wants no more of this load."""

    load: int
    upto: Count
    done: bool = False


class Reserve(Message, frozen=True):
    """The scheduler wants so many slots more."""

    count: Count


class Handles(Message, frozen=True):
    """SLOTS, WRITTEN, DROP."""

    handles: Packed


class Store(Message, frozen=True):
    """What reserved slots hold, or will hold once every rank has written."""

    request: Label
    tenant: Label
    zone: ZoneName
    session: Label
    handles: Packed
    hashes: Packed
    parents: Packed


class Gone(Message, frozen=True):
    """Blocks that are not held any more."""

    tenant: Label
    hashes: Packed


class Stats(Message, frozen=True):
    """The agent's figures."""

    figures: Annotated[dict[Label, float], Meta(max_length=128)]


T = TypeVar("T", bound=Message)

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[type[Message], msgspec.msgpack.Decoder[Any]]] = {}


def pack(message: Message) -> bytes:
    """As metadata."""
    return _encoder.encode(message)


def unpack(shape: type[T], meta: bytes) -> T:
    """Metadata as `shape`. Raises `WireFault`, whatever is wrong with it."""
    decoder = _decoders.get(shape)
    if decoder is None:
        decoder = _decoders[shape] = msgspec.msgpack.Decoder(shape, strict=True)
    try:
        message: T = decoder.decode(meta)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireFault(f"{shape.__name__}: {str(error)[:200]}") from None
    return message


def key_of(head: BlockHead) -> BlockKey:
    """The key of the block that a head describes."""
    return BlockKey(SpaceId(head.space), head.tenant, BlockHash(head.hash))


SHAPES: Final[dict[Type, type[Message]]] = {
    Type.REFUSED: Refused,
    Type.HELLO: Hello,
    Type.CHALLENGE: Challenge,
    Type.PROOF: Proof,
    Type.WELCOME: Welcome,
    Type.PING: Empty,
    Type.PONG: Empty,
    Type.SPACES: Spaces,
    Type.QUERY: Blocks,
    Type.FOUND: FoundBlocks,
    Type.FETCH: Blocks,
    Type.BLOCK: BlockHead,
    Type.END: EndOf,
    Type.CANCEL: Empty,
    Type.OFFER: OfferBlocks,
    Type.WANTED: Wanted,
    Type.PUT: BlockHead,
    Type.KEPT: Kept,
    Type.SUSPECT: OfBlock,
    Type.SESSION: OfSession,
    Type.CHAIN: Chain,
    Type.PREFETCH: Prefetch,
    Type.RELEASE: OfSession,
    Type.DONE: Done,
    Type.HOLDINGS: Holdings,
    Type.CHANGES: Changes,
    Type.ATTACH: Attach,
    Type.ATTACHED: Attached,
    Type.ASK: Ask,
    Type.ANSWER: Answer,
    Type.FORGET: OfRequest,
    Type.LOAD: Load,
    Type.LANDED: LandedBlocks,
    Type.ENDED: Ended,
    Type.ABORT: Abort,
    Type.COPIED: Copied,
    Type.RESERVE: Reserve,
    Type.SLOTS: Handles,
    Type.STORE: Store,
    Type.WRITTEN: Handles,
    Type.DROP: Handles,
    Type.FINISHED: OfRequest,
    Type.GONE: Gone,
    Type.STATS: Stats,
}
"""The shape of each type's metadata."""


def read(kind: Type, meta: bytes) -> Message:
    """Metadata of a frame of that type. Raises `WireFault`."""
    shape = SHAPES.get(kind)
    if shape is None:
        raise WireFault(f"{kind.name} has no place here")
    return unpack(shape, meta)
