"""Whatever the fleet says of itself, and whoever says what the fleet is: turns go on.

Texts of `/metrics`, answers of DNS, events of Kubernetes and of KV caches, fuzzed, through what reads them to
the engine. After each, a turn must get a replica, with a bill that adds up.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import isfinite
from random import Random
from typing import Any
from unittest.mock import patch

import dns.message
import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.name_server import name_server
from support.turns import A, engine, specs, turn

from router.base.clock import ManualClock
from router.base.ids import ReplicaId
from router.controlplane import dns_source, kubernetes_source
from router.controlplane.discovery import Discovery, Source
from router.controlplane.dns_source import DnsSource, Question
from router.controlplane.kubernetes_source import KubernetesSource, Query
from router.controlplane.kv_feed import KvFeed, _ResyncError
from router.controlplane.metrics_text import parse_report
from router.controlplane.roster import Listed
from router.controlplane.template import Template
from router.core.engine import Engine
from router.core.fleet import ReplicaSpec
from router.core.observe import Outcome, Usage
from router.telemetry.bill import bill

DEEP = 200_000


def routes(of: Engine, now: float) -> None:
    """A turn gets a replica, and its bill adds up."""
    ticket = of.admit(turn(f"s{now}"), now)
    for option in bill(ticket.decision)["options"]:  # type: ignore[attr-defined]
        terms = [term for name, term in option.items() if name.endswith("_ms") and name != "price_ms"]
        assert all(isfinite(term) and term >= 0.0 for term in terms), option
    ticket.first_byte(now)
    ticket.end(Outcome.COMPLETED, now, Usage(10, 1, 0))


# --- /metrics ---------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
        "process_start_time_seconds",
        "vllm:something_else",
    ]
)
LABELS = st.sampled_from(
    [
        "",
        '{engine="0"}',
        '{engine="1",model_name="a\\"b"}',
        '{block_size="16",num_gpu_blocks="1000"}',
        '{block_size="0",num_gpu_blocks="-1"}',
        '{block_size="99999999999",num_gpu_blocks="99999999999"}',
        '{block_size="x',
    ]
)
FIGURES = st.one_of(
    st.sampled_from(["NaN", "+Inf", "-Inf", "-1", "1e308", "1e-320", "9" * 40, "0x10", "", "1 2 3"]),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
)
LINES = st.tuples(NAMES, LABELS, FIGURES).map(lambda line: f"{line[0]}{line[1]} {line[2]}\n".encode())
TEXTS = st.one_of(st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=12).map(b"".join), st.binary())


@given(st.lists(st.tuples(TEXTS, st.integers(0, 400)), max_size=8))
def test_whatever_replicas_report_turns_go_on(told: list[tuple[bytes, int]]) -> None:
    of = engine("a", "b")
    for now, (text, kept) in enumerate(told, 1):
        # Cut off somewhere, as an answer is that broke off.
        of.report(A, parse_report(text[: kept or None]), float(now))
        routes(of, float(now))


# --- who there is -----------------------------------------------------------------------------------


@asynccontextmanager
async def found_by(name: str, source: Source) -> AsyncIterator[tuple[Discovery, Engine]]:
    """A fleet of one replica that the config lists, which a source may add to."""
    of = engine("a")
    clock = ManualClock(0.0)

    def changed(fleet: Sequence[Listed], leaving: frozenset[ReplicaId]) -> None:
        of.set_replicas([listed.spec for listed in fleet], clock.now(), leaving)

    discovery = Discovery(clock, changed, of.has_turns)
    discovery.list_config([Listed(spec, None, None) for spec in specs("a")])
    discovery.set_sources({name: source})
    try:
        yield discovery, of
    finally:
        await discovery.close()


def goes_on(discovery: Discovery, of: Engine) -> None:
    [status] = discovery.status()
    assert "the router's own" not in status.fault, status.fault
    assert A in of.replica_ids()
    routes(of, 1.0)


LABEL = st.binary(min_size=1, max_size=63)
TARGETS = st.lists(LABEL, max_size=3).map(lambda labels: dns.name.Name([*labels, b""]))
SRV = st.tuples(st.integers(0, 65535), TARGETS).map(
    lambda at: dns.rdata.from_wire(
        dns.rdataclass.IN,
        dns.rdatatype.SRV,
        struct.pack(">HHH", 0, 0, at[0]) + at[1].to_wire(),
        0,
        6 + len(at[1].to_wire()),
    )
)
A_RECORDS = st.binary(min_size=4, max_size=4).map(
    lambda raw: dns.rdata.from_wire(dns.rdataclass.IN, dns.rdatatype.A, raw, 0, 4)
)


class Resolver:
    """Answers with these records."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records

    async def resolve(self, *_: object, **__: object) -> Sequence[Any]:
        return self.records


@given(
    st.one_of(
        st.tuples(st.just("SRV"), st.lists(SRV, max_size=5)), st.tuples(st.just("A"), st.lists(A_RECORDS))
    )
)
@example(("SRV", []))
def test_whatever_records_a_name_has_turns_go_on(told: tuple[str, list[Any]]) -> None:
    kind, records = told
    question = Question(name="vllm.test", type=kind, port=8000, every_s=3600.0)
    source = DnsSource(question, Template(), Random(1))

    async def look() -> None:
        with patch.object(source, "_resolver", lambda: Resolver(records)):
            async with found_by("dns", source) as (discovery, of):
                await discovery.first_answers(60.0)
                goes_on(discovery, of)

    asyncio.run(look())


def _answer(kind: str) -> bytes:
    """A good one, without its id."""
    asked = dns.message.make_query("vllm.test", kind)
    answer = dns.message.make_response(asked)
    text = "0 0 8000 a.test." if kind == "SRV" else "10.0.0.9"
    answer.answer.append(dns.rrset.from_text("vllm.test.", 1, "IN", kind, text))
    return answer.to_wire()[2:]


@settings(max_examples=30)
@given(
    st.sampled_from(["A", "SRV"]),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), max_size=6),
    st.integers(0, 60),
    st.binary(max_size=20),
)
def test_whatever_bytes_a_name_server_answers_turns_go_on(
    kind: str, changes: list[tuple[int, int]], kept: int, more: bytes
) -> None:
    raw = bytearray(_answer(kind))
    for at, byte in changes:
        raw[at % len(raw)] = byte
    raw = bytearray(raw[: kept or None] + more)

    async def look() -> None:
        async with name_server() as server:
            server.raw = bytes(raw)
            question = Question(
                name="vllm.test", type=kind, port=8000, every_s=3600.0, server=("127.0.0.1", server.port)
            )
            async with found_by("dns", DnsSource(question, Template(), Random(1))) as (discovery, of):
                await discovery.first_answers(60.0)
                goes_on(discovery, of)

    with patch.object(dns_source, "_TIMEOUT_S", 0.1):
        asyncio.run(look())


KEYS = st.sampled_from(
    [
        "type",
        "object",
        "items",
        "metadata",
        "name",
        "resourceVersion",
        "deletionTimestamp",
        "code",
        "reason",
        "endpoints",
        "addresses",
        "addressType",
        "conditions",
        "ready",
        "terminating",
        "targetRef",
        "ports",
        "port",
        "status",
        "phase",
        "podIP",
        "spec",
        "containers",
        "containerPort",
    ]
)
WORDS = st.sampled_from(
    [
        "ADDED",
        "MODIFIED",
        "DELETED",
        "BOOKMARK",
        "ERROR",
        "vllm-0",
        "10.0.0.1",
        "::1",
        "IPv4",
        "http",
        "Running",
        "7",
    ]
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63),
        st.floats(allow_nan=False),
        WORDS,
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=25,
)
EVENT = st.fixed_dictionaries({"type": WORDS, "object": JSON})
LINE = st.one_of(
    EVENT.map(msgspec.json.encode),
    JSON.map(msgspec.json.encode),
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")),
    st.sampled_from([b"[" * DEEP, b'{"type":"ADDED","object":' + b'{"a":' * DEEP, b"9" * 5000]),
)


class _Content:
    def __init__(self, body: bytes) -> None:
        self.body = body

    async def iter_any(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.body), 1 << 16):
            yield self.body[at : at + (1 << 16)]


class _Response:
    def __init__(self, body: bytes) -> None:
        self.status = 200
        self.content = _Content(body)

    def release(self) -> None: ...

    close = release


class _Client:
    async def __aenter__(self) -> "_Client":
        return self

    async def __aexit__(self, *_: object) -> None: ...


@settings(max_examples=60)
@given(st.booleans(), st.one_of(st.none(), LINE), st.lists(LINE, max_size=6))
@example(False, None, [b"[" * DEEP])
@example(True, b'{"items":' + b"[" * DEEP, [])
def test_whatever_an_api_server_lists_and_tells_turns_go_on(
    pods: bool, listed: bytes | None, events: list[bytes]
) -> None:
    """`listed`: in the place of a list without replicas."""
    query = Query(
        namespace="n",
        service=None if pods else "s",
        pods="app=s" if pods else None,
        port=8000,
        kubeconfig=None,
    )
    source = KubernetesSource(query, Template(), Random(1), pause_s=0.0)
    told = asyncio.Event()

    async def listing(*, watch: bool = False, **_: object) -> _Response:
        if not watch:
            if listed is not None and told.is_set():
                await asyncio.Event().wait()
            if listed is not None:
                told.set()
            return _Response(listed or b'{"metadata":{"resourceVersion":"1"},"items":[]}')
        if told.is_set():
            await asyncio.Event().wait()
        told.set()
        return _Response(b"\n".join(events) + b"\n")

    async def connect() -> _Client:
        return _Client()

    async def look() -> None:
        with (
            patch.object(source, "_connect", connect),
            patch.object(source, "_listing", lambda _client: asyncio.sleep(0, listing)),
        ):
            async with found_by("kubernetes", source) as (discovery, of):
                await told.wait()
                for _ in range(20):
                    await asyncio.sleep(0)
                await discovery.first_answers(60.0)
                goes_on(discovery, of)

    with patch.object(kubernetes_source, "_BACKOFF_S", (0.0,)):
        asyncio.run(look())


# --- KV events --------------------------------------------------------------------------------------

HASH = st.one_of(st.integers(-(2**63), 2**64 - 1), st.binary(max_size=40), st.integers(0, 8))
STORED = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": st.lists(HASH, max_size=6),
        "parent_block_hash": st.one_of(st.none(), HASH),
        "block_size": st.one_of(st.integers(-2, 64), st.integers()).filter(lambda n: -(2**63) <= n < 2**64),
    },
    optional={"session_id": st.one_of(st.none(), st.text(max_size=8)), "group_idx": st.integers(0, 2)},
)
REMOVED = st.fixed_dictionaries({"type": st.just("BlockRemoved"), "block_hashes": st.lists(HASH, max_size=6)})
CLEARED = st.just({"type": "AllBlocksCleared"})
ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.text(max_size=6),
        st.binary(max_size=6),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)
BATCH = st.tuples(
    st.one_of(st.floats(), st.just(0.0)), st.lists(st.one_of(STORED, REMOVED, CLEARED, ANYTHING), max_size=5)
)
PAYLOAD = st.one_of(
    BATCH.map(msgspec.msgpack.encode),
    st.binary(max_size=60),
    st.just(b"\x92\xcb" + bytes(8) + b"\x91" * DEEP),
)
NUMBER = st.one_of(st.integers(0, 6), st.integers(0, 2**64 - 1)).map(lambda number: number.to_bytes(8, "big"))
FRAMES = st.one_of(
    st.tuples(st.just(b"kv"), NUMBER, PAYLOAD).map(list), st.lists(st.binary(max_size=12), max_size=4)
)


class Subscriber:
    """Has these messages, and no more."""

    def __init__(self, messages: Sequence[list[bytes]]) -> None:
        self.messages = list(messages)

    async def recv_multipart(self) -> list[bytes]:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)


@given(st.lists(FRAMES, max_size=12))
@example([[b"kv", bytes(8), b"\x92\xcb" + bytes(8) + b"\x91" * DEEP]])
def test_whatever_frames_a_publisher_sends_turns_go_on(messages: list[list[bytes]]) -> None:
    of = engine("a")
    spec = ReplicaSpec(A, "http://a:8000", kv_events="tcp://a:1")
    feed = KvFeed(spec, of, None)  # type: ignore[arg-type]
    subscriber: Any = Subscriber(messages)

    async def follow() -> None:
        while True:
            await feed._begin()
            try:
                await feed._read(subscriber)
            except _ResyncError as error:
                feed._let_go(str(error))
                routes(of, 1.0)
            except EOFError:
                return

    asyncio.run(follow())
    assert feed.status.live
    routes(of, 2.0)
    feed.stop()
    routes(of, 3.0)
