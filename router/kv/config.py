"""What an agent and a gateway are told, as plain values. Files and their checks are `settings`' business."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from router.kv.breaker import BreakerPolicy
from router.kv.codec import CodecName

Mode = Literal["off", "push-pool", "both"]
"""`off`: keeps blocks for its own engine only. `push-pool`: pushes to the pool and pulls from it. `both`:
pulls from other agents, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An agent or a gateway that may be dialled."""

    name: str
    host: str
    port: int
    is_pool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingConfig:
    """How room is shared out; see `StorePolicy`."""

    high_water: float = 0.70
    system_share: float = 0.25
    tenant_share: float = 1.0
    session_window_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """A KV agent."""

    name: str
    """The replica's name in the router's config: hints are signed for it."""
    secret: bytes
    host: str = "127.0.0.1"
    port: int = 7710
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = 7711
    """`None`: no metrics."""
    socket: Path
    """The unix socket for the engine beside it."""
    arena_folder: Path = Path("/dev/shm")
    arena_bytes: int = 4 << 30
    peers: tuple[Peer, ...] = ()
    mode: Mode = "both"
    keeping: KeepingConfig = field(default_factory=KeepingConfig)
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)
    stall_s: float = 0.150
    """Without progress, where no hint says otherwise."""
    deadline_s: float = 2.0
    """For a whole pull, where no hint says otherwise."""
    pulls_per_source: int = 8
    """At once."""
    push_blocks: int = 1024
    """That wait to be pushed at most."""
    push_codec: CodecName = "raw"
    """How blocks are pushed."""
    push_codec_system: bool = False
    """Whether system prompts and tool schemas are coded, too: they serve most."""
    verify_local: bool = True
    """Whether blocks of the own arena are held against their checksum before the engine gets them."""
    max_block_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """A KV gateway."""

    name: str
    secret: bytes
    host: str = "127.0.0.1"
    port: int = 7720
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = 7721
    arena_folder: Path = Path("/dev/shm")
    memory_bytes: int = 4 << 30
    disk_folder: Path | None = None
    """`None`: memory only."""
    disk_bytes: int = 64 << 30
    keeping: KeepingConfig = field(default_factory=KeepingConfig)
    max_block_bytes: int = 256 << 20
