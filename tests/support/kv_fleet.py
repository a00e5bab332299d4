"""KV agents on loopback, engines that are nothing but their connector's clients, and proxies between them."""

import asyncio
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from router.kv.agent import Agent
from router.kv.config import AgentConfig, GatewayConfig, Peer
from router.kv.gateway import Gateway
from router.kv.keys import ROOT
from router.kv.local import NewBlock, SchedulerClient, WorkerClient
from support.kv import NAMESPACE, SECRET, content
from support.kv_proxy import Proxy


async def until(condition, *, within=45.0, what=""):
    """Wait for it, however busy the machine is; its value."""
    end = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(what or "it did not come to that")
        await asyncio.sleep(0.002)
    return value


class Engine:
    """An engine with no model: its KV is what `content` says."""

    def __init__(self, agent, *, name="e", namespace=NAMESPACE, ranks=1, **wishes):
        part_bytes = namespace.block_bytes // ranks
        path = str(agent.config.socket)
        self.namespace = namespace
        self.scheduler = SchedulerClient(
            # A machine that runs many tests at once needs more patience than an engine has.
            path,
            engine=name,
            namespace=namespace,
            part_bytes=part_bytes,
            **{"answer_s": 30.0, **wishes},
        )
        self.workers = [
            WorkerClient(path, engine=name, rank=rank, namespace=namespace, part_bytes=part_bytes)
            for rank in range(ranks)
        ]
        self.requests = 0

    def poll(self):
        now = time.monotonic()
        self.scheduler.poll(now)
        for worker in self.workers:
            worker.poll(now)
        return now

    def ready(self):
        self.poll()
        return self.scheduler.connected and all(worker.connected for worker in self.workers)

    async def connect(self):
        await until(self.ready, what=f"no connection: {self.scheduler.refusal}")
        return self

    async def ask(self, hashes, *, tenant="t", hint=None, request=None):
        """The request's id and what was found."""
        self.requests += 1
        request = request or f"cmpl-r{self.requests}-0"
        self.scheduler.ask(request, tenant, hashes, hint=hint, now=self.poll())

        def answered():
            self.poll()
            return self.scheduler.answer(request)

        return request, await until(answered)

    async def load(self, request, count, *, first=0, stall_s=20.0, deadline_s=40.0, take=True):
        """Load blocks; what each rank copied, and the end."""
        load = self.scheduler.load(
            request, first=first, count=count, stall_s=stall_s, deadline_s=deadline_s, now=self.poll()
        )
        assert load is not None
        return await self.finish(load, count, deadline_s=deadline_s, take=take)

    async def finish(self, load, count, *, deadline_s=40.0, take=True):
        copied = [[] for _ in self.workers]
        for worker in self.workers:
            worker.expect(load, count=count, deadline_s=deadline_s, now=self.poll())

        def over():
            self.poll()
            for rank, worker in enumerate(self.workers):
                for landed in worker.landed(load):
                    copied[rank].append(bytes(worker.arena.part(landed.handle, rank)))
                    assert worker.arena.is_current(landed.handle)
                    if take:
                        worker.copied(load, landed.block + 1)
            return all(worker.ended(load) for worker in self.workers)

        await until(over)
        ends = {worker.ended(load) for worker in self.workers}
        for worker in self.workers:
            worker.forget(load)
        self.poll()
        (end,) = ends
        assert all(len(parts) == end.blocks for parts in copied)
        return [b"".join(parts) for parts in zip(*copied, strict=True)], end

    async def save(self, hashes, *, after=ROOT, tenant="t", zone="session", session="s", damage=None):
        """Store blocks with the contents that belong to their hashes, and wait until they are held."""
        hashes = list(hashes)
        parents = [after, *hashes[:-1]]
        while hashes:
            handles = await self.slots(len(hashes))
            blocks = [NewBlock(*item) for item in zip(handles, hashes, parents, strict=False)]
            hashes, parents = hashes[len(blocks) :], parents[len(blocks) :]
            for block in blocks:
                whole = (damage or content)(block.hash, self.namespace.block_bytes)
                for rank, worker in enumerate(self.workers):
                    part = worker.arena.part_bytes
                    worker.arena.part(block.handle, rank)[:] = whole[rank * part : (rank + 1) * part]
            self.scheduler.store("r", tenant, zone, blocks, session=session)
            for worker in self.workers:
                worker.written([block.handle for block in blocks])
            self.poll()

    async def slots(self, count):
        """At least one, at most so many."""
        return await until(lambda: self.poll() and self.scheduler.take_slots(count))

    def close(self):
        self.scheduler.close()
        for worker in self.workers:
            worker.close()


class Fleet:
    """Agents, gateways, engines and proxies with one ending."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kv"))
        self.things = []

    def config(self, name, *, peers=(), **wishes):
        defaults = {
            "name": name,
            "secret": SECRET,
            "port": 0,
            "metrics_port": 0,
            "socket": self.folder / f"{name}.sock",
            "arena_folder": self.folder,
            "arena_bytes": 64 * NAMESPACE.block_bytes,
            "peers": tuple(peers),
        }
        return AgentConfig(**{**defaults, **wishes})

    async def agent(self, name, *, peers=(), clock=None, **wishes):
        agent = Agent(self.config(name, peers=peers, **wishes), clock=clock)
        await agent.start()
        self.things.append(agent)
        return agent

    async def gateway(self, name="pool", *, clock=None, **wishes):
        defaults = {
            "name": name,
            "secret": SECRET,
            "port": 0,
            "metrics_port": 0,
            "arena_folder": self.folder,
            "memory_bytes": 64 * NAMESPACE.block_bytes,
        }
        gateway = Gateway(GatewayConfig(**{**defaults, **wishes}), clock=clock)
        await gateway.start()
        self.things.append(gateway)
        return gateway

    async def proxy(self, to):
        proxy = await Proxy(to.server.port).start()
        self.things.append(proxy)
        return proxy

    async def engine(self, agent, **wishes):
        engine = Engine(agent, **wishes)
        self.things.append(engine)
        return await engine.connect()

    async def pair(self, *, namespace=NAMESPACE, proxied=False, blocks=64, **wishes):
        """Agent `a` with an engine, agent `b` with one that pulls from `a`, maybe through a proxy."""
        size = blocks * namespace.block_bytes
        a = await self.agent("a", arena_bytes=size)
        proxy = await self.proxy(a) if proxied else None
        b = await self.agent("b", peers=[peer("a", proxy or a)], arena_bytes=size, **wishes)
        one = await self.engine(a, namespace=namespace)
        two = await self.engine(b, namespace=namespace)
        await until(lambda: not b.sources["a"].unusable(b.clock.now()), what=f"{b.sources['a'].trouble}")
        return a, b, one, two, proxy

    async def close(self):
        for thing in reversed(self.things):
            if isinstance(thing, Engine):
                thing.close()
            else:
                await thing.close()
        shutil.rmtree(self.folder)


def peer(name, at, *, is_pool=False):
    """An agent, gateway or proxy as a peer."""
    return Peer(
        name=name,
        host="127.0.0.1",
        port=at.port if isinstance(at, Proxy) else at.server.port,
        is_pool=is_pool,
    )


def larger(size):
    """The namespace with blocks of `size` bytes."""
    return replace(NAMESPACE, block_bytes=size)


async def settled(agent, engine):
    """Wait until nothing holds a slot but the store and what is reserved for saving."""

    def free():
        engine.poll()
        shelf = agent.shelf
        reserved = sum(len(one.saving) for one in agent.hub._engines.values())
        return shelf.owner.free + len(shelf.store) + reserved == shelf.owner.arena.slots

    await until(free, what="slots are held for good")
