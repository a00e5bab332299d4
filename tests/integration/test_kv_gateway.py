"""The pool: what one agent pushes the others get, also after a restart, a full disk or a damaged file."""

import asyncio
import errno
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from support.kv import NAMESPACE, chain, content
from support.kv_fleet import Fleet, larger, peer, until

from router.base.clock import ManualClock
from router.kv import messages as m
from router.kv.checksum import checksum
from router.kv.config import KeepingConfig
from router.kv.keys import ROOT
from router.kv.pushing import Priority

SIZE = NAMESPACE.block_bytes


@pytest.fixture
async def fleet():
    fleet = Fleet()
    yield fleet
    await fleet.close()


async def agents(fleet, gateway, names="ab", *, namespace=NAMESPACE, **wishes):
    """Agents that know only the pool, each with its engine."""
    made = []
    for name in names:
        agent = await fleet.agent(name, peers=[peer("pool", gateway, is_pool=True)], **wishes)
        made.append((agent, await fleet.engine(agent, namespace=namespace)))
        await until(lambda agent=agent: agent.sources["pool"].is_connected)
    return made


async def pool_holds(gateway, count):
    await until(lambda: len(gateway.store) == count, what=f"the pool holds {len(gateway.store)}")


async def on_disk(gateway, count):
    await until(lambda: sum(block.place.on_disk for block in gateway.store) == count)


async def pulled(engine, hashes, size=SIZE):
    request, found = await engine.ask(hashes)
    blocks, end = await engine.load(request, found.blocks)
    assert blocks == [content(hash_, size) for hash_ in hashes[: end.blocks]]
    return end.blocks


async def test_what_one_pushes_the_other_pulls(fleet):
    gateway = await fleet.gateway()
    (a, one), (b, two) = await agents(fleet, gateway)
    hashes = chain("x", 6)
    await one.save(hashes)
    await pool_holds(gateway, 6)
    assert await pulled(two, hashes) == 6
    assert a.stats()["pushed_bytes_total"] == 6 * SIZE
    assert b.stats()["pulled_bytes_total"] == 6 * SIZE


async def test_the_mode_push_pool_uses_the_pool_only(fleet):
    gateway = await fleet.gateway()
    a = await fleet.agent("a")
    b = await fleet.agent("b", peers=[peer("a", a), peer("pool", gateway, is_pool=True)], mode="push-pool")
    assert set(b.sources) == {"pool"}


async def test_a_block_is_sent_once_however_many_have_it(fleet):
    gateway = await fleet.gateway()
    made = await agents(fleet, gateway, "abc")
    hashes = chain("system", 4)
    for _, engine in made:
        await engine.save(hashes, zone="system", session="")
        await pool_holds(gateway, 4)
    await asyncio.sleep(0.1)
    assert sum(agent.pusher.pushed_blocks for agent, _ in made) == 4


async def test_other_bytes_under_a_known_key_are_refused(fleet):
    gateway = await fleet.gateway()
    (_, one), (b, two), (_, three) = await agents(fleet, gateway, "abc")
    hashes = chain("x", 2)
    await one.save(hashes)
    await pool_holds(gateway, 2)
    await two.save(hashes, damage=lambda hash_, size: content(hash_ + b"!", size))
    await until(lambda: gateway.store.counts.conflicts >= 2, what="a conflict is counted")
    assert await pulled(three, hashes) == 2, "the first ones stay"
    assert b.pusher.pushed_blocks == 0


def numbers(hash_, size):
    """A block of float32, as many as fit."""
    return np.random.default_rng(list(hash_[:8])).normal(size=size // 4).astype(np.float32).tobytes()


@pytest.mark.parametrize("on_disk_too", [False, True])
@pytest.mark.parametrize("system_too", [False, True])
async def test_a_pool_of_int8_gives_back_nearly_what_it_was_given(fleet, on_disk_too, system_too):
    gateway = await fleet.gateway(disk_folder=fleet.folder / "disk" if on_disk_too else None)
    wishes = {"push_codec": "int8", "push_codec_system": system_too}
    (_, one), (b, two) = await agents(fleet, gateway, **wishes)
    system, rest = chain("system", 2), None
    await one.save(system, zone="system", damage=numbers)
    await pool_holds(gateway, 2)
    rest = chain("rest", 4, after=system[-1])
    await one.save(rest, after=system[-1], damage=numbers)
    await pool_holds(gateway, 6)
    coded = {block.key.hash: block.place.head.codec for block in gateway.store}
    assert [coded[hash_] for hash_ in system] == ["int8" if system_too else "raw"] * 2
    assert {coded[hash_] for hash_ in rest} == {"int8"}
    assert gateway.store.used_bytes < (3 if system_too else 4) * SIZE
    if on_disk_too:
        await on_disk(gateway, 6)
        for block in gateway.store:
            gateway._leave_memory(block)
    request, _ = await two.ask([*system, *rest])
    blocks, end = await two.load(request, 6)
    assert end == (6, "done"), b.sources["pool"].failed
    for hash_, got in zip([*system, *rest], blocks, strict=True):
        want = np.frombuffer(numbers(hash_, SIZE), np.float32)
        error = np.abs(np.frombuffer(got, np.float32) - want).max()
        assert error < 0.05
        assert (error == 0.0) == (coded[hash_] == "raw")
    # Here they are what came, and are sound as that.
    assert all(b.shelf.is_sound(block) for block in list(b.shelf.store))
    assert gateway.store.counts.damaged == 0


async def test_a_damaged_coded_block_is_a_miss(fleet):
    gateway = await fleet.gateway()
    (_, one), (_, two) = await agents(fleet, gateway, push_codec="int8")
    hashes = chain("x", 3)
    await one.save(hashes, damage=numbers)
    await pool_holds(gateway, 3)
    victim = gateway.store.prefix(NAMESPACE.space, "t", hashes)[1]
    victim.place.memory[5] ^= 1
    request, _ = await two.ask(hashes)
    _, end = await two.load(request, 3)
    assert end == (1, "source")
    await until(lambda: gateway.store.counts.damaged == 1)


async def test_an_agent_without_the_codec_leaves_coded_blocks_there(fleet):
    gateway = await fleet.gateway()
    (_, one), (b, two) = await agents(fleet, gateway, push_codec="int8")
    hashes = chain("x", 3)
    await one.save(hashes, damage=numbers)
    await pool_holds(gateway, 3)
    b._puller.codec = None
    request, _ = await two.ask(hashes)
    assert await two.load(request, 3) == ([], (0, "source"))
    assert b.sources["pool"].failed == {"codec": 1}


async def test_tenants_share_nothing(fleet):
    gateway = await fleet.gateway()
    (_, one), (_, two) = await agents(fleet, gateway)
    hashes = chain("x", 3)
    await one.save(hashes, tenant="mine")
    await pool_holds(gateway, 3)
    _, found = await two.ask(hashes, tenant="theirs")
    assert found.blocks == 0


async def test_another_namespace_has_its_own_blocks_and_a_likeness_is_told(fleet, caplog):
    gateway = await fleet.gateway()
    ((_, one),) = await agents(fleet, gateway, "a")
    ((_, two),) = await agents(fleet, gateway, "b", namespace=replace(NAMESPACE, hash_seed="random-7"))
    hashes = chain("x", 3)
    await one.save(hashes)
    await pool_holds(gateway, 3)
    _, found = await two.ask(hashes)
    assert found.blocks == 0
    await until(lambda: "not ours to use: hash_seed: random-7 here, 0 there" in caplog.text)


async def test_blocks_of_several_sizes_live_in_one_pool(fleet):
    gateway = await fleet.gateway()
    ((_, one),) = await agents(fleet, gateway, "a")
    ((_, two),) = await agents(fleet, gateway, "b", namespace=larger(8192))
    await one.save(chain("x", 3))
    await two.save(chain("x", 3))
    await pool_holds(gateway, 6)


async def test_a_full_queue_drops_the_least_important_and_counts(fleet):
    gateway = await fleet.gateway()
    pool = peer("pool", gateway, is_pool=True)
    await gateway.server.close()
    agent = await fleet.agent("a", peers=[pool], push_blocks=4)
    engine = await fleet.engine(agent)
    await engine.save(chain("one-off", 4), session="one")
    await until(lambda: len(agent.shelf.store) == 4)
    await engine.save(chain("system", 3), zone="system", session="")
    await until(lambda: len(agent.shelf.store) == 7)
    assert agent.pusher._queue.dropped[Priority.SYSTEM] == 0
    assert agent.stats()["dropped_total"] == 3
    assert agent.stats()["push_queue_blocks"] == 4


async def test_a_pool_that_comes_back_has_the_beginnings_pushed_too(fleet):
    gateway = await fleet.gateway()
    ((_, engine),) = await agents(fleet, gateway, "a")
    hashes = chain("x", 3)
    await engine.save(hashes)
    await pool_holds(gateway, 3)
    gateway._forget(gateway.store.clear())
    more = chain("more", 1, after=hashes[-1])
    await engine.save(more, after=hashes[-1])
    await pool_holds(gateway, 4)


async def test_a_gateway_that_is_down_costs_nothing(fleet):
    gateway = await fleet.gateway()
    ((agent, engine),) = await agents(fleet, gateway, "a")
    await gateway.close()
    fleet.things.remove(gateway)
    await until(lambda: not agent.sources["pool"].is_connected)
    hashes = chain("x", 3)
    await engine.save(hashes)
    await until(lambda: len(agent.shelf.store) == 3)
    _, found = await engine.ask([*hashes, *chain("y", 3)])
    assert (found.blocks, found.reason) == (3, "unreachable")


# The disk.


async def test_a_restart_finds_what_was_there(fleet):
    folder = fleet.folder / "disk"
    gateway = await fleet.gateway(disk_folder=folder)
    ((_, one),) = await agents(fleet, gateway, "a")
    system, rest = chain("system", 2), None
    rest = chain("rest", 3, after=system[-1])
    await one.save(system, zone="system", session="s1")
    await one.save(rest, after=system[-1], session="s1")
    await on_disk(gateway, 5)
    await gateway.close()
    fleet.things.remove(gateway)
    again = await fleet.gateway("pool", disk_folder=folder)
    assert len(again.store) == 5
    assert [(held.name.id, held.blocks) for held in again.store.changes(0).held] == [("s1", 5)]
    ((_, two),) = await agents(fleet, again, "b")
    assert await pulled(two, system + rest) == 5


async def test_what_waits_to_be_written_is_written_at_the_end(fleet, monkeypatch):
    folder = fleet.folder / "disk"
    gateway = await fleet.gateway(disk_folder=folder)
    ((_, one),) = await agents(fleet, gateway, "a")
    gateway._wake.clear()
    monkeypatch.setattr(gateway._wake, "set", lambda: None)
    await one.save(chain("x", 4))
    await pool_holds(gateway, 4)
    assert not any(block.place.on_disk for block in gateway.store)
    await gateway.close()
    fleet.things.remove(gateway)
    assert len((await fleet.gateway(disk_folder=folder)).store) == 4


async def test_memory_is_only_a_part_of_what_is_held(fleet):
    gateway = await fleet.gateway(disk_folder=fleet.folder / "disk", memory_bytes=3 * SIZE)
    (_, one), (_, two) = await agents(fleet, gateway)
    hashes = chain("x", 12)
    for at in range(0, 12, 2):
        await one.save(hashes[at : at + 2], after=hashes[at - 1] if at else bytes(32))
        await pool_holds(gateway, at + 2)
        await on_disk(gateway, at + 2)
    assert sum(block.place.memory is not None for block in gateway.store) <= 3
    assert await pulled(two, hashes) == 12


async def test_a_damaged_file_is_a_miss_and_set_aside(fleet):
    folder = fleet.folder / "disk"
    gateway = await fleet.gateway(disk_folder=folder)
    (_, one), (_, two) = await agents(fleet, gateway)
    hashes = chain("x", 5)
    await one.save(hashes)
    await on_disk(gateway, 5)
    for block in gateway.store:
        gateway._leave_memory(block)
    victim = gateway.store.prefix(NAMESPACE.space, "t", hashes)[2]
    path = gateway.disk._path(victim.key)
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 4
    path.write_bytes(raw)
    assert await pulled(two, hashes) == 2
    assert [file.name for file in (folder / "damaged").iterdir()] == [path.name]
    assert gateway.store.counts.damaged == 1


async def test_a_full_disk_makes_room_and_then_rests(fleet, monkeypatch):
    gateway = await fleet.gateway(
        disk_folder=fleet.folder / "disk", keeping=KeepingConfig(session_window_s=0.0)
    )
    ((_, one),) = await agents(fleet, gateway, "a")
    await one.save(chain("old", 4), session="")
    await on_disk(gateway, 4)
    full, refused, removing = [1], [], set()
    plain, remove = gateway.disk.write, gateway.disk.remove

    def write(head, payload):
        if full[0]:
            full[0] -= 1
            refused.append(head)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(head, payload)

    def noted(key):
        removing.add(threading.get_ident())
        remove(key)

    monkeypatch.setattr(gateway.disk, "write", write)
    monkeypatch.setattr(gateway.disk, "remove", noted)
    await one.save(chain("new", 1), session="")
    await until(lambda: gateway.store.counts.evicted["session"] == 1)
    await on_disk(gateway, 4)
    assert removing.isdisjoint({threading.get_ident()}), "which holds up nobody"
    assert len(list((fleet.folder / "disk").glob("??/*.kv"))) == 4
    full[0] = 99
    await one.save(chain("newer", 1), session="")
    await until(lambda: gateway.counts["disk_failures"] == 1)
    count = len(refused)
    await one.save(chain("newest", 1), session="")
    await until(lambda: gateway.counts["disk_skipped"] == 1)
    assert len(refused) == count, "it rests"
    assert not gateway._may_write()


async def test_a_full_disk_is_not_relieved_by_what_never_was_on_it(fleet, monkeypatch):
    gateway = await fleet.gateway(disk_folder=fleet.folder / "disk")
    ((_, one),) = await agents(fleet, gateway, "a")
    await one.save(chain("old", 4))
    await on_disk(gateway, 4)

    def write(head, payload):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gateway.disk, "write", write)
    # Of no session, so the only one that may go: the others' session is active.
    await one.save(chain("new", 1), session="")
    await until(lambda: gateway.counts["disk_failures"] == 1)
    assert sum(gateway.store.counts.evicted.values()) == 0
    await pool_holds(gateway, 5)


async def test_what_waited_to_be_written_when_the_disk_failed_is_counted_as_not_written(fleet, monkeypatch):
    gateway = await fleet.gateway(disk_folder=fleet.folder / "disk")
    ((_, one),) = await agents(fleet, gateway, "a")
    go_on = threading.Event()

    def write(head, payload):
        assert go_on.wait(120)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(gateway.disk, "write", write)
    await one.save(chain("new", 4))
    await pool_holds(gateway, 4)
    go_on.set()
    await until(lambda: not gateway._writes)
    assert (gateway.counts["disk_failures"], gateway.counts["disk_skipped"]) == (1, 3)
    assert gateway._waiting_bytes == 0


def in_memory(gateway):
    return sum(block.size for block in gateway.store if block.place.memory is not None)


@pytest.mark.parametrize("disk", ["stuck", "broken"])
async def test_memory_is_bounded_whatever_the_disk_does(fleet, monkeypatch, disk):
    clock = ManualClock()
    gateway = await fleet.gateway(clock=clock, disk_folder=fleet.folder / "disk", memory_bytes=8 * SIZE)
    go_on = threading.Event()

    def write(head, payload):
        if disk == "stuck":
            assert go_on.wait(120)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(gateway.disk, "write", write)
    most = 0

    def look(plain=gateway.place):
        def place(head, size):
            nonlocal most
            placed = plain(head, size)
            most = max(most, in_memory(gateway) + gateway._coming_bytes)
            return placed

        return place

    monkeypatch.setattr(gateway, "place", look())
    try:
        (_, one), (_, two) = await agents(fleet, gateway)
        # One session is longer than memory: of that, what fits is kept. Then come others.
        for number, length in enumerate([12, 3, 3, 3, 3, 3]):
            clock.advance(5.0)
            hashes = chain(f"x{number}", length)
            before = one_pushed(gateway)
            await one.save(hashes, session=f"s{number}")
            await until(lambda before=before, length=length: one_pushed(gateway) >= before + length)
            assert 0 < in_memory(gateway) <= 8 * SIZE
        assert most <= 8 * SIZE
        assert gateway._resident_bytes == in_memory(gateway)
        assert gateway._coming_bytes == 0
        assert await pulled(two, hashes) == 3, "the newest"
        assert gateway.counts["memory_only_dropped"] > 0
    finally:
        go_on.set()


def one_pushed(gateway):
    """Blocks that have come, kept or not."""
    refused = sum(count for reason, count in gateway.counts.items() if reason.startswith("refused:"))
    return gateway.store.counts.stored + refused


async def test_a_block_that_did_not_arrive_gives_its_memory_back(fleet):
    gateway = await fleet.gateway()
    (hash_,) = chain("x", 1)
    head = m.BlockHead(NAMESPACE.space, "t", hash_, ROOT, checksum(content(hash_, SIZE)), "session", "")
    placed = gateway.place(head, SIZE)
    assert gateway._coming_bytes == SIZE
    placed.give_up()
    assert gateway._coming_bytes == 0
    placed = gateway.place(head, SIZE)
    placed.target[:] = content(hash_, SIZE)
    assert placed.keep(head.checksum) == "stored"
    assert (gateway._coming_bytes, gateway._resident_bytes) == (0, SIZE)


async def test_what_lost_its_beginning_is_not_taken_up(fleet):
    folder = fleet.folder / "disk"
    gateway = await fleet.gateway(disk_folder=folder)
    ((_, one),) = await agents(fleet, gateway, "a")
    hashes = chain("x", 4)
    await one.save(hashes)
    await on_disk(gateway, 4)
    gateway.disk.remove(gateway.store.prefix(NAMESPACE.space, "t", hashes)[1].key)
    await gateway.close()
    fleet.things.remove(gateway)
    again = await fleet.gateway(disk_folder=folder)
    assert len(again.store) == 1
    assert len(list(folder.glob("??/*.kv"))) == 1


async def test_a_tenant_has_its_share_of_the_pool(fleet):
    gateway = await fleet.gateway(keeping=KeepingConfig(tenant_share=0.25), memory_bytes=16 * SIZE)
    ((_, one),) = await agents(fleet, gateway, "a")
    for number in range(4):
        await one.save(chain(f"x{number}", 2), tenant="greedy", session="")
        await asyncio.sleep(0.05)
    await until(lambda: gateway.store.counts.stored >= 8)
    assert gateway.store.tenant_bytes("greedy") <= 4 * SIZE


async def test_figures_are_served(fleet):
    gateway = await fleet.gateway(disk_folder=fleet.folder / "disk")
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.metrics.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    assert "homing_kv_blocks 0\n" in text
    assert "homing_kv_disk_up 1\n" in text
