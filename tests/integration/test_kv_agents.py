"""Two KV agents over loopback: what one engine stored the other gets, whatever happens in between."""

import asyncio
import socket
import time
from dataclasses import fields, replace

import pytest
from support.kv import NAMESPACE, SECRET, chain, content
from support.kv_fleet import Engine, Fleet, larger, peer, settled, until

from router.base.clock import ManualClock
from router.kv import messages as m
from router.kv.agent import Agent
from router.kv.breaker import BreakerPolicy, BreakerState
from router.kv.checksum import checksum
from router.kv.config import KeepingConfig
from router.kv.hint import sign
from router.kv.keys import ROOT, Namespace, pack_hashes
from router.kv.local import NewBlock
from router.kv.remote import RemoteFault, dial
from router.kv.wire import Type, encode

BIG = larger(1 << 20)


@pytest.fixture
async def fleet():
    fleet = Fleet()
    yield fleet
    await fleet.close()


def whole(hashes, size=NAMESPACE.block_bytes):
    return [content(hash_, size) for hash_ in hashes]


async def held(agent, count):
    await until(lambda: agent.shelf is not None and len(agent.shelf.store) == count)


async def stored(agent, engine, name="x", count=8, **wishes):
    hashes = chain(name, count)
    before = len(agent.shelf.store)
    await engine.save(hashes, **wishes)
    await held(agent, before + count)
    return hashes


def hint(request, *, replica="b", secret=SECRET, **edit):
    plain = {
        "v": 1,
        "session": "s1",
        "tenant": "t",
        "sources": ["a"],
        "epoch": 1,
        "stall_ms": 500,
        "deadline_ms": 5000,
        "system_tokens": 32,
        "exp": int(time.time()) + 60,
        **edit,
    }
    return sign(plain, secret=secret, replica=replica, request=request)


# What it is for.


async def test_an_engine_gets_its_own_blocks_back(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    hashes = await stored(a, engine, count=5)
    request, found = await engine.ask([*hashes, *chain("y", 2)])
    assert (found.blocks, found.local, found.tenant, found.reason) == (5, 5, "t", "")
    blocks, end = await engine.load(request, 3, first=2)
    assert blocks == whole(hashes[2:])
    assert end == (3, "done")
    await settled(a, engine)


async def test_a_peer_pulls(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    request, found = await two.ask([*hashes, *chain("y", 2)])
    assert (found.blocks, found.local) == (8, 0)
    blocks, end = await two.load(request, 8)
    assert blocks == whole(hashes)
    assert end == (8, "done")
    request, found = await two.ask(hashes)
    assert (found.blocks, found.local) == (8, 8), "what was pulled is kept"
    assert b.sources["a"].pulled_bytes == 8 * NAMESPACE.block_bytes
    await settled(a, one)
    await settled(b, two)


async def test_local_and_pulled_blocks_mix(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    await two.save(hashes[:3])
    await held(b, 3)
    request, found = await two.ask(hashes)
    assert (found.blocks, found.local) == (8, 3)
    blocks, end = await two.load(request, 8)
    assert (blocks, end.blocks) == (whole(hashes), 8)


async def test_what_the_engine_has_itself_need_not_be_here(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    request, found = await two.ask(hashes[5:])
    assert found.blocks == 3
    blocks, _ = await two.load(request, 3)
    assert blocks == whole(hashes[5:])
    await settled(b, two)
    assert len(b.shelf.store) == 0, "blocks without a beginning are not kept"


async def test_parts_of_all_ranks_make_a_block(fleet):
    space = replace(NAMESPACE, tp_size=2, ranks="0-1")
    a = await fleet.agent("a")
    engine = await fleet.engine(a, namespace=space, ranks=2)
    (hash_,) = chain("x", 1)
    (handle,) = await until(lambda: engine.poll() and engine.scheduler.take_slots(1))
    data = content(hash_, space.block_bytes)
    half = space.block_bytes // 2
    for rank, worker in enumerate(engine.workers):
        worker.arena.part(handle, rank)[:] = data[rank * half :][:half]
    engine.scheduler.store("r", "t", "session", [NewBlock(handle, hash_, ROOT)], session="")
    engine.workers[0].written([handle])
    await asyncio.sleep(0.05)
    _, found = await engine.ask([hash_])
    assert found.blocks == 0, "the other rank has not written"
    engine.workers[1].written([handle])
    await held(a, 1)
    request, found = await engine.ask([hash_])
    blocks, _ = await engine.load(request, 1)
    assert blocks == [data]
    await settled(a, engine)


async def test_blocks_that_are_complete_before_their_parents_wait_for_them(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    hashes = chain("x", 3)
    handles = await until(lambda: engine.poll() and engine.scheduler.take_slots(3))
    blocks = [NewBlock(*item) for item in zip(handles, hashes, [ROOT, *hashes], strict=False)]
    engine.scheduler.store("r", "t", "session", blocks, session="")
    for handle in reversed(handles[1:]):
        engine.workers[0].written([handle])
        await asyncio.sleep(0.02)
        assert len(a.shelf.store) == 0
    engine.workers[0].written(handles[:1])
    await held(a, 3)


async def test_a_hundred_requests_for_one_prefix_are_one_fetch(fleet):
    a, b, one, two, _ = await fleet.pair(namespace=larger(65536))
    hashes = await stored(a, one)
    asked = [await two.ask(hashes) for _ in range(100)]
    now = two.poll()
    loads = [
        two.scheduler.load(request, first=0, count=8, stall_s=20, deadline_s=40, now=now)
        for request, _ in asked
    ]
    for load in loads:
        blocks, end = await two.finish(load, 8)
        assert end == (8, "done")
        assert blocks == whole(hashes, 65536)
    assert b.sources["a"].succeeded == 1
    assert b.sources["a"].pulled_bytes == 8 * 65536
    await settled(b, two)


# The router's hints.


async def test_a_hint_names_tenant_session_sources_and_limits(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one, tenant="acme")
    raw = hint("r7", tenant="acme", stall_ms=300, deadline_ms=900)
    request, found = await two.ask(hashes, tenant="whatever", hint=raw, request="cmpl-r7-0")
    assert (found.blocks, found.tenant, found.system_blocks) == (8, "acme", 2)
    assert (found.stall_s, found.deadline_s) == (0.3, 0.9)
    await two.load(request, 8)
    changes = b.changes(b.life, 0)
    assert [(one.session, one.blocks) for one in changes.held] == [("s1", 8)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (hint("r7", replica="a"), "hint:signature"),
        (hint("r8"), "hint:signature"),
        (hint("r7", secret=b"another"), "hint:signature"),
        ({**hint("r7"), "tenant": "other"}, "hint:signature"),
        ({**hint("r7"), "v": 2}, "hint:version"),
        (hint("r7", exp=1), "hint:expired"),
        ({"v": 1}, "hint:malformed"),
    ],
)
async def test_a_hint_that_is_not_the_routers_gets_nothing(fleet, raw, reason):
    a = await fleet.agent("b")
    engine = await fleet.engine(a)
    hashes = await stored(a, engine)
    _, found = await engine.ask(hashes, hint=raw, request="cmpl-r7-0")
    assert (found.blocks, found.reason) == (0, reason)


async def test_a_replayed_hint_gets_nothing(fleet):
    a = await fleet.agent("b")
    engine = await fleet.engine(a)
    hashes = await stored(a, engine)
    raw = hint("r7")
    _, found = await engine.ask(hashes, hint=raw, request="cmpl-r7-0-aaaa")
    assert found.blocks == 8
    _, found = await engine.ask(hashes, hint=raw, request="cmpl-r7-0-bbbb")
    assert (found.blocks, found.reason) == (0, "hint:replayed")


async def test_a_source_that_is_not_configured_is_never_dialled(fleet):
    a, _, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    raw = hint("r7", sources=["127.0.0.1:1", "c", "pool"])
    _, found = await two.ask(hashes, hint=raw, request="cmpl-r7-0")
    assert found.blocks == 0


# Isolation.


async def test_another_tenants_block_looks_like_absence(fleet):
    a, _, one, two, _ = await fleet.pair()
    hashes = await stored(a, one, tenant="acme")
    _, theirs = await two.ask(hashes, tenant="other")
    _, absent = await two.ask(chain("nothing", 8), tenant="other")
    assert theirs == absent
    assert theirs.blocks == 0


@pytest.mark.parametrize(
    "name", [f.name for f in fields(Namespace) if f.name not in {"block_bytes", "ranks"}]
)
async def test_a_peer_of_another_namespace_is_refused_by_the_field_that_differs(fleet, name):
    value = getattr(NAMESPACE, name)
    other = replace(NAMESPACE, **{name: value + 1 if isinstance(value, int) else value + "x"})
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a)])
    one = await fleet.engine(a)
    two = await fleet.engine(b, namespace=other)
    await until(lambda: b.sources["a"].mismatch and b.sources["a"].is_connected)
    hashes = await stored(a, one)
    _, found = await two.ask(hashes)
    assert (found.blocks, found.reason) == (0, f"namespace:{name}")


async def test_a_second_engine_of_another_namespace_is_told_which_field(fleet):
    a = await fleet.agent("a")
    await fleet.engine(a)
    other = Engine(a, name="f", namespace=replace(NAMESPACE, kv_dtype="fp8"))
    fleet.things.append(other)
    await until(lambda: other.poll() and other.scheduler.refusal)
    assert other.scheduler.refusal == "another engine is here: kv_dtype: float32 here, fp8 there"


async def test_an_engine_that_comes_back_with_another_model_starts_anew(fleet):
    a = await fleet.agent("a")
    one = await fleet.engine(a)
    hashes = await stored(a, one)
    one.close()
    await until(lambda: a.hub.engines == 0)
    two = await fleet.engine(a, namespace=replace(NAMESPACE, revision="2", block_bytes=8192))
    _, found = await two.ask(hashes)
    assert found.blocks == 0
    assert a.shelf.block_bytes == 8192


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ({"block_bytes": 4097}, "block_bytes: 4097 is not 1 × 4096"),
        ({"ranks": "0-1"}, "block_bytes: 4096 is not 2 × 4096"),
        ({"ranks": "all"}, "ranks: 'all' is neither a number nor a range"),
        ({"ranks": "3-1"}, "ranks: '3-1' is no range of ranks"),
    ],
)
async def test_an_engine_that_contradicts_itself_is_refused(fleet, edit, fault):
    a = await fleet.agent("a")
    engine = Engine(a)
    fleet.things.append(engine)
    link = engine.scheduler._link
    link._attach = m.Attach("scheduler", "e", 0, {**NAMESPACE.as_dict(), **edit}, 4096)
    await until(lambda: engine.poll() and engine.scheduler.refusal)
    assert fault in engine.scheduler.refusal


# Strangers.


async def test_a_wrong_secret_is_refused_on_both_sides(fleet):
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a)], secret=b"another")
    await until(lambda: b.sources["a"].trouble != "not dialled yet")
    assert b.sources["a"].trouble == "the other side does not know this fleet's secret"
    assert not b.sources["a"].is_connected
    assert a.server.connections <= 1


async def test_a_peer_of_another_name_is_not_used(fleet):
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("c", a)])
    await until(lambda: b.sources["c"].trouble != "not dialled yet")
    assert b.sources["c"].trouble == "it calls itself a, not c"


async def test_a_stranger_gets_nothing_and_is_let_go(fleet):
    a = await fleet.agent("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
    writer.write(encode(Type.QUERY, 1, m.pack(m.Blocks(bytes(16), "t", b"")), checksum=checksum))
    assert await reader.read() == b""
    assert a.server.refused == {"message": 1}
    writer.close()


async def test_a_version_clash_is_told_by_both(fleet):
    a = await fleet.agent("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
    raw = bytearray(encode(Type.HELLO, 0, m.pack(m.Hello("x", "agent", bytes(32))), checksum=checksum))
    raw[4] = 9
    writer.write(raw)
    answer = await reader.read()
    assert answer[:6] == b"HMKV\x01\x00", "REFUSED, which every version can read"
    assert b"the other side speaks version 9, this one 1" in answer
    assert a.server.refused == {"version": 1}
    writer.close()


async def test_one_that_says_nothing_is_let_go(fleet, monkeypatch):
    monkeypatch.setattr("router.kv.serving.GREETING_S", 0.05)
    a = await fleet.agent("a")
    reader, writer = await asyncio.open_connection("127.0.0.1", a.server.port)
    assert await reader.read() == b""
    assert a.server.refused == {"greeting": 1}
    writer.close()


# Faults of the network.


async def test_a_slow_peer_costs_no_more_than_the_deadline_and_what_landed_is_kept(fleet):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, found = await two.ask(hashes)
    assert found.blocks == 8
    proxy.drip_after = 5 << 19
    blocks, end = await two.load(request, 8, stall_s=4.0, deadline_s=5.0)
    assert end == (2, "deadline")
    assert blocks == whole(hashes[: end.blocks], 1 << 20)
    assert b.sources["a"].failed == {"deadline": 1}
    await settled(b, two)
    _, found = await two.ask(hashes)
    assert found.local == end.blocks


async def test_a_half_open_connection_ends_by_the_stall(fleet):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    proxy.hold_after = 5 << 19
    blocks, end = await two.load(request, 8, stall_s=1.0)
    assert end == (2, "stall")
    assert blocks == whole(hashes[:2], 1 << 20)
    await settled(b, two)
    proxy.passing.set()


async def test_a_silent_peer_is_left_and_dialled_anew(fleet, monkeypatch):
    monkeypatch.setattr("router.kv.remote._PING_S", 0.05)
    _, b, _, _, proxy = await fleet.pair(proxied=True)
    proxy.passing.clear()
    await until(lambda: not b.sources["a"].is_connected)
    assert b.sources["a"].trouble == "no answer"
    proxy.passing.set()
    proxy.cut()
    await until(lambda: b.sources["a"].is_connected)


async def test_a_peer_that_takes_connections_and_never_greets_is_dialled_until_it_does(fleet, monkeypatch):
    """Its process is stopped, or something between it and here is: connections are made, and that is all."""
    monkeypatch.setattr("router.kv.remote.DIAL_S", 0.05)
    monkeypatch.setattr("router.kv.sources._RETRY_S", (0.01,))
    a, b, one, two, proxy = await fleet.pair(proxied=True)
    source = b.sources["a"]
    proxy.passing.clear()
    proxy.cut()
    await until(lambda: source.trouble == "no answer in 0 s")
    proxy.passing.set()
    monkeypatch.setattr("router.kv.remote.DIAL_S", 30.0)
    await until(lambda: source.is_connected, what=source.trouble)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    blocks, end = await two.load(request, 8)
    assert (blocks, end.reason) == (whole(hashes), "done")


@pytest.mark.parametrize("after", [100, 300_000, 5_000_000])
async def test_a_cut_connection_keeps_what_landed(fleet, after):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    proxy.cut_after = after
    blocks, end = await two.load(request, 8)
    assert end.reason == "source"
    assert end.blocks <= after >> 20
    assert blocks == whole(hashes[: end.blocks], 1 << 20)
    await settled(b, two)
    proxy.cut_after = None
    await until(lambda: b.sources["a"].is_connected)
    request, _ = await two.ask(hashes)
    blocks, end = await two.load(request, 8)
    assert (blocks, end.reason) == (whole(hashes, 1 << 20), "done")


@pytest.mark.parametrize("at", [10, 40, 200_000, 3_000_000])
async def test_a_flipped_bit_is_never_a_block(fleet, at):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    proxy.flip_after = at
    blocks, end = await two.load(request, 8)
    assert end.blocks < 8
    assert blocks == whole(hashes[: end.blocks], 1 << 20)
    await settled(b, two)
    assert a.shelf.store.counts.damaged == 0, "the source's copy is sound, and stays"
    await until(lambda: b.sources["a"].is_connected)
    request, _ = await two.ask(hashes)
    blocks, end = await two.load(request, 8)
    assert (blocks, end.reason) == (whole(hashes, 1 << 20), "done")


async def test_a_block_that_is_damaged_at_its_source_is_a_miss_and_quarantined(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    victim = a.shelf.store.prefix(NAMESPACE.space, "t", hashes)[3]
    a.shelf.bytes_of(victim)[7] ^= 1
    request, _ = await two.ask(hashes)
    blocks, end = await two.load(request, 8)
    assert blocks == whole(hashes[:3])
    assert end == (3, "source")
    await until(lambda: a.shelf.store.counts.damaged == 1)
    assert a.shelf.set_aside == 1
    assert b.stats()["damaged_total"] == 1
    await one.save(hashes[3:4], after=hashes[2])
    await held(a, 8)
    request, _ = await two.ask(hashes)
    blocks, end = await two.load(request, 8)
    assert blocks == whole(hashes), "once it is stored anew, all is well"


async def test_a_block_that_is_damaged_here_is_a_miss(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    hashes = await stored(a, engine)
    victim = a.shelf.store.prefix(NAMESPACE.space, "t", hashes)[3]
    a.shelf.bytes_of(victim)[0] ^= 0x80
    request, _ = await engine.ask(hashes)
    blocks, end = await engine.load(request, 8)
    assert blocks == whole(hashes[:3])
    assert end.blocks == 3


async def test_the_next_source_has_what_the_first_lost(fleet):
    room = 32 << 20
    a, c = await fleet.agent("a", arena_bytes=room), await fleet.agent("c", arena_bytes=room)
    proxy = await fleet.proxy(a)
    b = await fleet.agent("b", peers=[peer("a", proxy), peer("c", c)], arena_bytes=room)
    one, three, two = [await fleet.engine(agent, namespace=BIG) for agent in (a, c, b)]
    await until(lambda: not any(source.unusable(b.clock.now()) for source in b.sources.values()))
    hashes = await stored(a, one)
    await stored(c, three)
    request, _ = await two.ask(hashes)
    proxy.cut_after = 3 << 20
    blocks, end = await two.load(request, 8)
    assert (blocks, end.reason) == (whole(hashes, 1 << 20), "done")
    assert b.sources["a"].failed == {"lost": 1}
    assert b.sources["c"].succeeded == 1
    await settled(b, two)


# Lives and deaths.


async def test_an_agent_that_is_killed_ends_loads_at_once_and_its_engine_goes_on(fleet):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    proxy.hold_after = 5 << 19
    load = two.scheduler.load(request, first=0, count=8, stall_s=50, deadline_s=50, now=two.poll())
    await until(lambda: two.poll() and b.sources["a"].bulk.bytes_in > 2 << 20)
    await b.close()
    fleet.things.remove(b)
    _, end = await two.finish(load, 8, deadline_s=50)
    assert end.reason == "disconnected"
    _, found = await two.ask(hashes)
    assert (found.blocks, found.reason) == (0, "disconnected")
    again = await fleet.agent("b", peers=[peer("a", proxy)], arena_bytes=32 << 20)
    await until(two.ready)
    proxy.passing.set()
    await until(lambda: not again.sources["a"].unusable(again.clock.now()))
    request, found = await two.ask(hashes)
    blocks, _ = await two.load(request, 8)
    assert blocks == whole(hashes, 1 << 20)


async def test_an_engine_that_dies_leaves_nothing_behind(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    hashes = await stored(a, engine)
    engine.scheduler.take_slots(5)
    request, _ = await engine.ask(hashes)
    load = engine.scheduler.load(request, first=0, count=8, stall_s=20, deadline_s=40, now=engine.poll())
    engine.workers[0].expect(load, count=8, deadline_s=40, now=engine.poll())
    await until(lambda: engine.poll() and engine.workers[0].landed(load))
    engine.close()
    await until(lambda: a.hub.engines == 0)
    slots = a.shelf.owner.arena.slots
    assert a.shelf.owner.free < slots - 8, "what its workers may still be writing to rests first"
    a.shelf.owner.sweep(a.clock.now() + 6)
    assert a.shelf.owner.free == slots - 8


async def test_a_load_that_is_cancelled_ends(fleet):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True)
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    proxy.hold_after = 5 << 19
    load = two.scheduler.load(request, first=0, count=8, stall_s=50, deadline_s=50, now=two.poll())
    await until(lambda: two.poll() and b.sources["a"].bulk.bytes_in > 1 << 20)
    two.scheduler.cancel(load)
    _, end = await two.finish(load, 8, deadline_s=50)
    assert end.reason == "cancelled"
    await settled(b, two)
    assert b.sources["a"].pulls == 0
    assert b.sources["a"].breaker.state(b.clock.now()) is BreakerState.CLOSED


async def test_a_burst_of_failures_opens_the_breaker_and_it_closes_again(fleet):
    """Each pull is of a block that its source has damaged."""
    clock = ManualClock()
    a, b, one, two, _ = await fleet.pair(breaker=BreakerPolicy(first_share=0.5), clock=clock)
    source, names = b.sources["a"], [f"x{number}" for number in range(50)]
    for name in names:
        await stored(a, one, name, count=1)
    damaged = [chain(name, 1) for name in names[:20]]
    for hashes in damaged:
        (block,) = a.shelf.store.prefix(NAMESPACE.space, "t", hashes)
        a.shelf.bytes_of(block)[7] ^= 1
    for number, hashes in enumerate(damaged):
        assert source.breaker.state(clock.now()) is BreakerState.CLOSED, number
        request, found = await two.ask(hashes)
        assert found.blocks == 1
        assert await two.load(request, 1) == ([], (0, "source"))
    # The twentieth opened it: nobody pulls, and what is sound there is to be computed.
    assert b.stats()["breaker_open"] == 1
    sound = [chain(name, 1) for name in names[20:]]
    _, found = await two.ask(sound[0])
    assert (found.blocks, found.reason) == (0, "breaker")
    assert b.stats()["pulls_failed_total"] == b.stats()["damaged_total"] == 20
    clock.advance(5.0)
    assert source.breaker.state(clock.now()) is BreakerState.RETURNING
    ends = []
    while source.breaker.state(clock.now()) is BreakerState.RETURNING:
        request, _ = await two.ask(sound[len(ends)])
        blocks, end = await two.load(request, 1)
        assert blocks == whole(sound[len(ends)][: end.blocks])
        ends.append(end)
        clock.advance(0.5)
    assert b.stats()["breaker_open"] == 0
    # Not all at once: half of them at first.
    assert {"done", "source"} == {end.reason for end in ends}
    request, _ = await two.ask(sound[-1])
    assert await two.load(request, 1) == (whole(sound[-1]), (1, "done"))


async def test_a_sources_budget_is_kept(fleet):
    a, b, one, two, proxy = await fleet.pair(namespace=BIG, blocks=32, proxied=True, pulls_per_source=1)
    first = await stored(a, one, "x", 3)
    second = await stored(a, one, "y", 3)
    request, _ = await two.ask(first)
    proxy.hold_after = 3 << 19
    load = two.scheduler.load(request, first=0, count=3, stall_s=50, deadline_s=50, now=two.poll())
    await until(lambda: two.poll() and b.sources["a"].pulls == 1)
    _, found = await two.ask(second)
    assert (found.blocks, found.reason) == (0, "busy")
    await until(lambda: not proxy.passing.is_set())
    proxy.passing.set()
    _, end = await two.finish(load, 3)
    assert end == (3, "done")


async def test_a_full_arena_gives_up_what_is_worth_least(fleet):
    a = await fleet.agent("a", arena_bytes=16 * NAMESPACE.block_bytes)
    engine = await fleet.engine(a, slots_wanted=4)
    for number in range(6):
        await engine.save(chain(f"x{number}", 4), session="")
        await asyncio.sleep(0.02)
        engine.poll()
    await until(lambda: engine.poll() and a.shelf.store.counts.stored == 24)
    assert a.shelf.store.counts.evicted["session"] >= 8
    _, found = await engine.ask(chain("x5", 4))
    assert found.blocks == 4
    assert not engine.scheduler.holds("t", chain("x0", 4)[3])


async def test_no_pull_is_begun_without_room_for_it(fleet):
    a, _, one, two, _ = await fleet.pair(blocks=16)
    hashes = await stored(a, one, count=11)
    await two.slots(1)
    _, found = await two.ask(hashes)
    assert (found.blocks, found.reason) == (0, "pressure")
    _, found = await two.ask(hashes[:6])
    assert found.blocks == 6


async def test_a_load_of_what_was_never_asked_ends_with_nothing(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    request, _ = await engine.ask(await stored(a, engine))
    engine.scheduler._link.send(Type.FORGET, m.OfRequest(request))
    assert await engine.load(request, 8) == ([], (0, "cancelled"))


async def test_a_connection_that_is_lost_before_it_is_served_leaves_no_engine(fleet):
    a = await fleet.agent("a")
    engine = Engine(a)
    engine.poll()
    engine.close()
    await until(lambda: a.shelf is not None)
    await asyncio.sleep(0.05)
    assert a.hub.engines == 0


# What the router asks.


async def router_of(agent, secret=SECRET):
    return await dial(
        "127.0.0.1", agent.server.port, secret=secret, name="router", role="router", max_block=1
    )


async def test_prefetch_brings_a_sessions_blocks_before_they_are_asked_for(fleet):
    a, b, one, two, _ = await fleet.pair()
    system = await stored(a, one, "system", 2, zone="system", session="s9")
    rest = chain("rest", 6, after=system[-1])
    await one.save(rest, after=system[-1], session="s9")
    await held(a, 8)
    router = await router_of(b)
    wish = m.Prefetch("t", "s9", ["nobody", "a"], 20_000)
    done = await router.call(Type.PREFETCH, wish, m.Done, 30.0)
    assert (done.blocks, done.size, done.reason) == (8, 8 * NAMESPACE.block_bytes, "done")
    _, found = await two.ask([*system, *rest])
    assert (found.blocks, found.local) == (8, 8)
    assert b.shelf.store.prefix(NAMESPACE.space, "t", system)[1].zone == "system"
    done = await router.call(Type.PREFETCH, wish, m.Done, 30.0)
    assert (done.blocks, done.reason) == (0, "done"), "it is all here"
    request, _ = await two.ask([*system, *rest[:3]])
    await two.load(request, 5)
    b.shelf.drop(b.shelf.store.clear())
    stats = b.stats()
    assert stats["prefetched_blocks_total"] == 8
    assert stats["prefetch_hit_blocks_total"] == 5
    assert stats["prefetch_wasted_bytes_total"] == 3 * NAMESPACE.block_bytes
    done = await router.call(Type.PREFETCH, m.Prefetch("t", "none", ["a"], 20_000), m.Done, 30.0)
    assert (done.blocks, done.reason) == (0, "gone")
    router.close()


async def test_a_prefetch_wants_room_like_any_pull(fleet):
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a)], arena_bytes=16 * NAMESPACE.block_bytes)
    one, _ = await fleet.engine(a), await fleet.engine(b)
    await until(lambda: not b.sources["a"].unusable(b.clock.now()))
    await stored(a, one, count=11, session="s9")
    router = await router_of(b)
    done = await router.call(Type.PREFETCH, m.Prefetch("t", "s9", ["a"], 20_000), m.Done, 30.0)
    assert (done.blocks, done.size, done.reason) == (0, 0, "pressure")
    assert len(b.shelf.store) == 0
    router.close()


async def test_a_prefetch_counts_what_is_held_afterwards_not_what_came(fleet):
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a)], keeping=KeepingConfig(tenant_share=3 / 64))
    one, _ = await fleet.engine(a), await fleet.engine(b)
    await until(lambda: not b.sources["a"].unusable(b.clock.now()))
    await stored(a, one, session="s9")
    router = await router_of(b)
    done = await router.call(Type.PREFETCH, m.Prefetch("t", "s9", ["a"], 20_000), m.Done, 30.0)
    assert 0 < done.blocks == len(b.shelf.store) <= 3
    assert (done.size, done.reason) == (done.blocks * NAMESPACE.block_bytes, "full")
    assert b.stats()["prefetched_blocks_total"] == done.blocks
    router.close()


async def test_holdings_tell_what_changed_and_that_an_agent_was_started_anew(fleet):
    a = await fleet.agent("a")
    engine = await fleet.engine(a)
    await stored(a, engine, count=3, session="s1")
    router = await router_of(a)

    async def changes(life, since):
        return await router.call(Type.HOLDINGS, m.Holdings(life, since), m.Changes, 30.0)

    all_of_it = await changes(b"", 0)
    assert all_of_it.complete
    assert [(one.tenant, one.session, one.blocks) for one in all_of_it.held] == [("t", "s1", 3)]
    assert (all_of_it.block_tokens, all_of_it.blocks, all_of_it.capacity_blocks) == (16, 3, 64)
    assert all_of_it.life == router.life
    nothing = await changes(all_of_it.life, all_of_it.number)
    assert (nothing.held, nothing.gone, nothing.complete) == ([], [], False)
    done = await router.call(Type.RELEASE, m.OfSession("t", "s1"), m.Done, 30.0)
    assert done.blocks == 3
    after = await changes(all_of_it.life, all_of_it.number)
    assert after.gone == [("t", "s1")]
    assert (await changes(b"x" * 16, all_of_it.number)).complete
    router.close()


async def test_a_router_with_another_secret_is_refused(fleet):
    a = await fleet.agent("a")
    with pytest.raises(RemoteFault, match="does not know this fleet's secret"):
        await router_of(a, b"another")


async def test_nobody_there_is_said_in_the_systems_words():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(RemoteFault, match="Connection refused"):
            await dial("127.0.0.1", port, secret=SECRET, name="r", role="router", max_block=1)


# Figures, addresses, sockets.


async def test_metrics_are_served(fleet):
    a, b, one, two, _ = await fleet.pair()
    hashes = await stored(a, one)
    request, _ = await two.ask(hashes)
    await two.load(request, 8)
    reader, writer = await asyncio.open_connection("127.0.0.1", b.metrics.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    assert "homing_kv_pulled_bytes_total 32768\n" in text
    assert 'homing_kv_source_state{source="a",state="closed"} 1\n' in text
    assert "homing_kv_pull_seconds_count 1\n" in text
    await until(lambda: two.poll() and two.scheduler.stats.get("pulls_total") == 1.0)
    assert two.scheduler.stats["hit_blocks_total"] == 8.0


async def test_a_second_agent_on_one_socket_is_refused(fleet):
    a = await fleet.agent("a")
    with pytest.raises(OSError, match="another agent listens on"):
        await Agent(replace(a.config, name="z")).start()
    assert await fleet.engine(a)


async def test_a_socket_that_a_dead_agent_left_is_taken_over(fleet):
    config = fleet.config("a")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(config.socket))
    a = await fleet.agent("a")
    assert await fleet.engine(a)


async def test_mode_off_dials_nobody(fleet):
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a)], mode="off")
    assert b.sources == {}


async def test_a_query_names_only_blocks(fleet):
    a = await fleet.agent("a")
    router = await router_of(a)
    with pytest.raises(RemoteFault):
        await router.call(Type.QUERY, m.Blocks(bytes(16), "t", b"x" * 33), m.FoundBlocks, 30.0)
    router = await router_of(a)
    found = await router.call(
        Type.QUERY, m.Blocks(bytes(16), "t", pack_hashes(chain("x", 2))), m.FoundBlocks, 30.0
    )
    assert found.blocks == 0
    router.close()


async def test_an_arena_whose_engine_left_while_it_was_made_is_given_back(fleet):
    a = await fleet.agent("a")
    made = asyncio.create_task(a.shelf_for(NAMESPACE, NAMESPACE.block_bytes, 1, alone=True))
    await asyncio.sleep(0)
    made.cancel()
    await a.close()
    assert made.cancelled()
    assert not [path.name for path in a.config.arena_folder.iterdir() if "homing-arena" in path.name]
