"""The files of a KV agent and of a KV gateway: checked here, and handed down as plain values.

`router.kv` runs beside an engine and knows neither YAML nor pydantic.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from router.base.errors import SettingsError
from router.kv.config import AgentConfig, GatewayConfig, KeepingConfig, Peer
from router.settings.credentials import fleet_secret
from router.settings.document import Document, Fault, read_document
from router.settings.fields import (
    Address,
    Duration,
    FilePath,
    ListenAddress,
    Model,
    Name,
    RemoteAddress,
    Size,
)
from router.settings.load import checked, lines_of, same_address
from router.settings.locate import shown

Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
_SUN_PATH: Final = 100
"""Bytes of a unix socket's path that every system takes."""


class KvPeer(Model):
    """Another agent, or a gateway. Nothing else is ever dialled."""

    name: Name
    """What it calls itself: `kv_agent` or `kv_gateway` in its own file."""
    address: RemoteAddress
    pool: bool = False
    """Whether it is a gateway."""


class Arena(Model):
    """The shared memory that the engine's workers map."""

    folder: FilePath = "/dev/shm"
    size: Size = 4 << 30


class Pull(Model):
    """Limits of a pull, where no hint of the router's says otherwise."""

    stall: Duration = 0.150
    deadline: Duration = 2.0
    per_source: Count = 8


class Push(Model):
    """The way to the pool."""

    queue: Count = 1024
    codec: Literal["raw", "int8"] = "raw"
    """How blocks are coded in the pool."""
    codec_system: bool = False
    """Whether system prompts and tool schemas are, too."""

    @model_validator(mode="after")
    def _can_code(self) -> Self:
        if self.codec == "int8" and find_spec("numpy") is None:
            raise ValueError("codec: int8 needs numpy: pip install 'homing[int8]'")
        return self


class Keep(Model):
    """How room is shared out."""

    high_water: Share = 0.7
    system_share: Share = 0.25
    tenant_share: Share = 1.0
    session_window: Duration = 120.0

    def keeping(self) -> KeepingConfig:
        return KeepingConfig(
            high_water=self.high_water,
            system_share=self.system_share,
            tenant_share=self.tenant_share,
            session_window_s=self.session_window,
        )


class KvFile(Model):
    """What both kinds of file have."""

    version: Literal[1]
    listen: ListenAddress
    metrics: ListenAddress | None
    """`/metrics` and `/livez`; `None` = not served."""
    secret_file: FilePath | None = None
    keep: Keep = Keep()
    max_block: Size = 256 << 20
    """The largest block that is taken."""

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.metrics is not None and same_address(self.listen, self.metrics):
            raise ValueError(f"metrics: {self.metrics} is also for peers; give each its own")
        return self


class AgentFile(KvFile):
    """A KV agent's file."""

    listen: ListenAddress = Address("127.0.0.1", 7710)
    metrics: ListenAddress | None = Address("127.0.0.1", 7711)
    kv_agent: Name
    """Its name: the replica's in the router's config, since hints are made out to it."""
    socket: FilePath
    """Made at start; the engine's connector is given the same path."""
    arena: Arena = Arena()
    mode: Literal["off", "push-pool", "both"] = "both"
    peers: tuple[KvPeer, ...] = ()
    pull: Pull = Pull()
    push: Push = Push()
    verify_local: bool = True
    """Whether blocks of its own arena are held against their checksum before the engine gets them."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.socket.encode()) > _SUN_PATH:
            raise ValueError(f"socket: a unix socket's path has at most {_SUN_PATH} bytes")
        names = [peer.name for peer in self.peers]
        for name in names:
            if names.count(name) > 1 or name == self.kv_agent:
                whose = "this agent's own name" if name == self.kv_agent else "given twice"
                raise ValueError(f"peers: '{name}' is {whose}")
        return self


class Disk(Model):
    """Where a gateway keeps what memory has no room for."""

    folder: FilePath
    """Made at start; this gateway's alone."""
    size: Size = 64 << 30


class GatewayFile(KvFile):
    """A KV gateway's file."""

    listen: ListenAddress = Address("127.0.0.1", 7720)
    metrics: ListenAddress | None = Address("127.0.0.1", 7721)
    kv_gateway: Name
    """Its name, as agents' files have it."""
    memory: Size = 4 << 30
    disk: Disk | None = None


F = TypeVar("F", bound=KvFile)


@dataclass(frozen=True, slots=True)
class KvReading(Generic[F]):
    """A file, and what is amiss."""

    file: F | None
    secret: bytes | None
    absent: tuple[Fault, ...] = ()
    """What may be there where the file is used."""
    wrong: tuple[Fault, ...] = ()


def is_kv_agent(document: Document) -> bool:
    """Whether it is meant as an agent's file."""
    return document.at("kv_agent") is not None


def is_kv_gateway(document: Document) -> bool:
    """Whether it is meant as a gateway's file."""
    return document.at("kv_gateway") is not None


def read_kv_file(
    shape: type[F], document: Document, folder: Path, environ: Mapping[str, str]
) -> KvReading[F]:
    """Check an agent's or a gateway's file."""
    file, faults = checked(shape, document)
    if file is None:
        return KvReading(None, None, wrong=tuple(faults))
    secret, absent, wrong = fleet_secret(document, folder, environ, file.secret_file)
    if secret is None and not (absent or wrong):
        what = "secret_file: agents, gateways and the router share a secret; give it or HOMING_SECRET"
        absent.append(document.fault(("secret_file",), what))
    return KvReading(file, secret, tuple(absent), (*faults, *wrong))


def load_kv_agent(path: Path, environ: Mapping[str, str]) -> AgentConfig:
    """An agent's configuration. Raises `SettingsError` with every fault."""
    reading = read_kv_file(AgentFile, read_document(path, shown(path)), path.parent, environ)
    file, secret = _usable(reading)
    return AgentConfig(
        name=file.kv_agent,
        secret=secret,
        host=file.listen.host,
        port=file.listen.port,
        metrics_host="127.0.0.1" if file.metrics is None else file.metrics.host,
        metrics_port=None if file.metrics is None else file.metrics.port,
        socket=Path(file.socket),
        arena_folder=Path(file.arena.folder),
        arena_bytes=file.arena.size,
        peers=tuple(
            Peer(name=peer.name, host=peer.address.host, port=peer.address.port, is_pool=peer.pool)
            for peer in file.peers
        ),
        mode=file.mode,
        keeping=file.keep.keeping(),
        stall_s=file.pull.stall,
        deadline_s=file.pull.deadline,
        pulls_per_source=file.pull.per_source,
        push_blocks=file.push.queue,
        push_codec=file.push.codec,
        push_codec_system=file.push.codec_system,
        verify_local=file.verify_local,
        max_block_bytes=file.max_block,
    )


def load_kv_gateway(path: Path, environ: Mapping[str, str]) -> GatewayConfig:
    """A gateway's configuration. Raises `SettingsError` with every fault."""
    reading = read_kv_file(GatewayFile, read_document(path, shown(path)), path.parent, environ)
    file, secret = _usable(reading)
    return GatewayConfig(
        name=file.kv_gateway,
        secret=secret,
        host=file.listen.host,
        port=file.listen.port,
        metrics_host="127.0.0.1" if file.metrics is None else file.metrics.host,
        metrics_port=None if file.metrics is None else file.metrics.port,
        memory_bytes=file.memory,
        disk_folder=None if file.disk is None else Path(file.disk.folder),
        disk_bytes=(64 << 30) if file.disk is None else file.disk.size,
        keeping=file.keep.keeping(),
        max_block_bytes=file.max_block,
    )


def _usable(reading: KvReading[F]) -> tuple[F, bytes]:
    if reading.file is None or reading.secret is None or reading.wrong:
        raise SettingsError(lines_of([*reading.absent, *reading.wrong]))
    return reading.file, reading.secret
