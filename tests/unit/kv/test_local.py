"""The engine's side: never waits, never raises, and gives every load exactly one end."""

import socket

import pytest
from support.kv import NAMESPACE, chain

from router.kv import messages as m
from router.kv.arena import ArenaOwner, Handle, arena_path, pack_handles, unpack_handles
from router.kv.keys import ROOT, pack_hashes
from router.kv.local import (
    ANSWER_S,
    END_SLACK_S,
    Found,
    Landed,
    LoadEnd,
    NewBlock,
    SchedulerClient,
    WorkerClient,
)
from router.kv.wire import Decoder, Type, encode


class Agent:
    """The other end of the socket: says what a test tells it to."""

    def __init__(self, folder):
        self.path = str(folder / "agent.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen()
        self.listener.settimeout(40)
        self.arena = ArenaOwner(arena_path(folder, "a"), slots=8, part_bytes=16)
        self.peer = None

    def accept(self):
        self.peer, _ = self.listener.accept()
        self.peer.settimeout(40)
        self.decoder = Decoder(1 << 20, None)
        self.frames = []

    def heard(self, kind):
        """The next message of that type; those before it are forgotten."""
        while True:
            while self.frames:
                frame = self.frames.pop(0)
                if frame.type is kind:
                    return m.read(frame.type, frame.meta)
            self.frames += self.decoder.feed(self.peer.recv(65536))

    def say(self, kind, message):
        self.peer.sendall(encode(kind, 0, m.pack(message), checksum=None))

    def attach(self):
        self.accept()
        message = self.heard(Type.ATTACH)
        self.say(Type.ATTACHED, m.Attached(str(self.arena.path), self.arena.arena.identity))
        return message

    def close(self):
        self.hang_up()
        self.listener.close()
        self.arena.close()

    def hang_up(self):
        if self.peer is not None:
            self.peer.close()


@pytest.fixture
def agent(tmp_path):
    agent = Agent(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def scheduler(agent):
    client = SchedulerClient(agent.path, engine="e", namespace=NAMESPACE, part_bytes=16, slots_wanted=4)
    yield client
    client.close()


@pytest.fixture
def worker(agent):
    client = WorkerClient(agent.path, engine="e", rank=0, namespace=NAMESPACE, part_bytes=16)
    yield client
    client.close()


def connect(agent, client):
    client.poll(0.0)
    attach = agent.attach()
    client.poll(0.0)
    assert client.connected
    return attach


HASHES = chain("x", 3)


def test_an_engine_says_what_it_is(agent, scheduler, worker):
    assert connect(agent, scheduler) == m.Attach("scheduler", "e", 0, NAMESPACE.as_dict(), 16)
    assert agent.heard(Type.RESERVE) == m.Reserve(4)
    agent.hang_up()
    assert connect(agent, worker).role == "worker"
    assert worker.arena.identity == agent.arena.arena.identity


def test_a_question_is_answered_at_a_later_step(agent, scheduler):
    connect(agent, scheduler)
    scheduler.ask("r1", "acme", HASHES, hint={"v": 1}, now=1.0)
    scheduler.ask("r1", "acme", HASHES, hint={"v": 1}, now=1.0)
    assert scheduler.answer("r1") is None
    assert agent.heard(Type.ASK) == m.Ask("r1", "acme", pack_hashes(HASHES), {"v": 1})
    agent.say(Type.ANSWER, m.Answer("r1", 2, 1, "acme", 150, 2000, 1, "breaker"))
    scheduler.poll(1.001)
    assert scheduler.answer("r1") == Found(2, 1, "acme", 0.15, 2.0, 1, "breaker")
    assert scheduler.holds("acme", HASHES[0])
    assert not scheduler.holds("acme", HASHES[1]), "it lies elsewhere"
    assert not scheduler.holds("other", HASHES[0])
    agent.say(Type.GONE, m.Gone("acme", HASHES[0]))
    scheduler.poll(1.002)
    assert not scheduler.holds("acme", HASHES[0])
    scheduler.forget("r1")
    assert agent.heard(Type.FORGET) == m.OfRequest("r1")
    assert scheduler.answer("r1") is None


def test_an_answer_that_does_not_come_is_nothing_after_a_while(agent, scheduler):
    connect(agent, scheduler)
    scheduler.ask("r1", "acme", HASHES, hint=None, now=1.0)
    scheduler.poll(1.0 + ANSWER_S * 0.9)
    assert scheduler.answer("r1") is None
    scheduler.poll(1.001 + ANSWER_S)
    assert scheduler.answer("r1").reason == "timeout"
    agent.say(Type.ANSWER, m.Answer("r1", 3, 3, "acme", 1, 1, 0))
    scheduler.poll(1.1)
    assert scheduler.answer("r1").blocks == 0, "an answer does not change once it was given"


def test_the_agent_is_told_how_long_its_answer_is_waited_for(agent):
    patient = SchedulerClient(agent.path, engine="e", namespace=NAMESPACE, part_bytes=16, answer_s=5.0)
    connect(agent, patient)
    patient.ask("r1", "acme", HASHES, hint=None, now=1.0)
    assert agent.heard(Type.ASK).patience_ms == 5000
    patient.poll(6.0)
    assert patient.answer("r1") is None
    patient.poll(6.001)
    assert patient.answer("r1").reason == "timeout"
    patient.close()


def test_without_an_agent_there_is_nothing_and_no_wait(tmp_path):
    client = SchedulerClient(str(tmp_path / "none"), engine="e", namespace=NAMESPACE, part_bytes=16)
    for step in range(200):
        client.poll(step / 100)
        client.ask(f"r{step}", "", HASHES, hint=None, now=step / 100)
        assert client.answer(f"r{step}").reason == "disconnected"
        assert client.load(f"r{step}", first=0, count=1, stall_s=1, deadline_s=1, now=0) is None
        assert client.take_slots(3) == []
        client.store("r", "", "session", [NewBlock(Handle(0, 1), HASHES[0], ROOT)], session="")
        client.cancel(5)
        client.finished(f"r{step}")


def test_an_agent_that_does_not_read_costs_no_wait(agent, scheduler):
    connect(agent, scheduler)
    many = chain("y", 1000)
    # Nobody ever reads: whoever waited here would wait for good.
    for step in range(400):
        scheduler.poll(step / 1000)
        scheduler.ask(f"r{step}", "", many, hint=None, now=step / 1000)
    assert not scheduler.connected, "what waits to be sent is bounded"


def test_a_load_is_started_and_cancelled(agent, scheduler):
    connect(agent, scheduler)
    scheduler.ask("r1", "", HASHES, hint=None, now=0.0)
    one = scheduler.load("r1", first=1, count=2, stall_s=0.15, deadline_s=2, now=0.0)
    assert agent.heard(Type.LOAD) == m.Load("r1", one, 1, 2, 150, 2000)
    two = scheduler.load("r1", first=0, count=1, stall_s=0.15, deadline_s=2, now=0.0)
    assert two != one
    assert scheduler.load("unknown", first=0, count=1, stall_s=1, deadline_s=1, now=0.0) is None
    scheduler.cancel(one)
    assert agent.heard(Type.ABORT) == m.Abort(one)


def test_slots_are_reserved_ahead_and_stored(agent, scheduler):
    connect(agent, scheduler)
    agent.heard(Type.RESERVE)
    handles = [agent.arena.allocate() for _ in range(4)]
    agent.say(Type.SLOTS, m.Handles(pack_handles(handles)))
    scheduler.poll(0.1)
    taken = scheduler.take_slots(3)
    assert taken == handles[:3]
    assert agent.heard(Type.RESERVE) == m.Reserve(3)
    assert scheduler.take_slots(3) == handles[3:]
    new = [NewBlock(taken[0], HASHES[0], ROOT), NewBlock(taken[1], HASHES[1], HASHES[0])]
    scheduler.store("r1", "acme", "system", new, session="s")
    stored = agent.heard(Type.STORE)
    assert unpack_handles(stored.handles) == taken[:2]
    assert stored.parents == ROOT + HASHES[0]
    assert (stored.tenant, stored.zone, stored.session) == ("acme", "system", "s")
    assert scheduler.holds("acme", HASHES[1])
    scheduler.drop(taken[2:])
    assert agent.heard(Type.DROP) == m.Handles(pack_handles(taken[2:]))


def test_a_refusal_is_told_and_tried_again_rarely(agent, scheduler):
    scheduler.poll(0.0)
    agent.accept()
    agent.heard(Type.ATTACH)
    agent.say(Type.REFUSED, m.Refused("namespace", "kv_dtype: fp8 here, bf16 there"))
    scheduler.poll(0.0)
    assert not scheduler.connected
    assert scheduler.refusal == "kv_dtype: fp8 here, bf16 there"
    agent.hang_up()
    agent.listener.settimeout(0.05)
    scheduler.poll(1.9)
    with pytest.raises(TimeoutError):
        agent.accept()
    scheduler.poll(2.1)
    agent.attach()
    scheduler.poll(2.2)
    assert scheduler.connected
    assert scheduler.refusal is None


def test_figures_come_and_go_with_the_agent(agent, scheduler):
    connect(agent, scheduler)
    agent.say(Type.STATS, m.Stats({"blocks": 3.0}))
    scheduler.poll(0.1)
    assert scheduler.stats == {"blocks": 3.0}
    agent.hang_up()
    scheduler.poll(0.2)
    assert scheduler.stats == {}


def test_bytes_that_are_no_message_end_the_connection(agent, scheduler):
    connect(agent, scheduler)
    agent.peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(20))
    scheduler.poll(0.1)
    assert not scheduler.connected


def test_blocks_are_given_out_in_order_and_the_end_comes_last(agent, worker):
    connect(agent, worker)
    one, two, three = (agent.arena.allocate() for _ in range(3))
    agent.say(Type.LANDED, m.LandedBlocks(7, 0, pack_handles([one])))
    worker.poll(0.1)
    worker.expect(7, count=3, deadline_s=2, now=0.1)
    assert worker.landed(7) == [Landed(0, one)]
    agent.say(Type.LANDED, m.LandedBlocks(7, 1, pack_handles([two, three])))
    agent.say(Type.ENDED, m.Ended(7, 3, "done"))
    worker.poll(0.2)
    assert worker.ended(7) is None, "there are blocks to copy first"
    assert worker.landed(7) == [Landed(1, two), Landed(2, three)]
    assert worker.landed(7) == []
    assert worker.ended(7) == LoadEnd(3, "done")
    worker.copied(7, 3)
    assert agent.heard(Type.COPIED) == m.Copied(7, 3)
    worker.forget(7)
    assert agent.heard(Type.COPIED) == m.Copied(7, 3, done=True)
    assert worker.ended(7) is None
    worker.forget(7)


def test_a_gap_is_not_given_out(agent, worker):
    connect(agent, worker)
    worker.expect(7, count=3, deadline_s=2, now=0.0)
    agent.say(Type.LANDED, m.LandedBlocks(7, 1, pack_handles([agent.arena.allocate()])))
    worker.poll(0.1)
    assert worker.landed(7) == []


def test_a_silent_agent_ends_no_later_than_the_deadline(agent, worker):
    connect(agent, worker)
    handle = agent.arena.allocate()
    worker.expect(7, count=3, deadline_s=2, now=1.0)
    agent.say(Type.LANDED, m.LandedBlocks(7, 0, pack_handles([handle])))
    worker.poll(3.0 + END_SLACK_S)
    assert worker.landed(7) == [Landed(0, handle)]
    assert worker.ended(7) is None
    worker.poll(3.01 + END_SLACK_S)
    assert worker.ended(7) == LoadEnd(1, "deadline")
    agent.say(Type.LANDED, m.LandedBlocks(7, 1, pack_handles([agent.arena.allocate()])))
    agent.say(Type.ENDED, m.Ended(7, 2, "done"))
    worker.poll(4.0)
    assert worker.landed(7) == []
    assert worker.ended(7) == LoadEnd(1, "deadline"), "there is one end"


def test_an_agent_that_dies_ends_every_load_and_what_landed_can_be_copied(agent, worker):
    connect(agent, worker)
    handle = agent.arena.allocate()
    agent.arena.arena.block(handle)[:] = b"sixteen bytes ok"
    worker.expect(7, count=3, deadline_s=2, now=0.0)
    agent.say(Type.LANDED, m.LandedBlocks(7, 0, pack_handles([handle])))
    worker.poll(0.1)
    agent.hang_up()
    worker.poll(0.2)
    assert not worker.connected
    (landed,) = worker.landed(7)
    assert bytes(worker.arena.part(landed.handle, 0)) == b"sixteen bytes ok"
    assert worker.ended(7) == LoadEnd(1, "disconnected")
    worker.expect(8, count=3, deadline_s=2, now=0.2)
    assert worker.ended(8) == LoadEnd(0, "disconnected")


def test_an_arena_that_cannot_be_mapped_is_told(agent, worker):
    worker.poll(0.0)
    agent.accept()
    agent.heard(Type.ATTACH)
    agent.say(Type.ATTACHED, m.Attached("/none", bytes(16)))
    worker.poll(0.0)
    assert not worker.connected
    assert "cannot open the arena '/none'" in worker.refusal


def test_parts_that_are_written_are_told(agent, worker):
    connect(agent, worker)
    handle = agent.arena.allocate()
    worker.written([handle])
    worker.written([])
    assert agent.heard(Type.WRITTEN) == m.Handles(pack_handles([handle]))


def test_nothing_is_said_before_the_agent_has_answered(agent, scheduler):
    """What an earlier connection was about is gone with it: an agent that hears of it first hangs up."""
    scheduler.poll(0.0)
    scheduler.ask("r", "t", (), hint=None, now=0.0)
    scheduler.forget("r")
    scheduler.finished("r")
    scheduler.cancel(7)
    scheduler.drop([Handle(1, 1)])
    agent.accept()
    agent.heard(Type.ATTACH)
    agent.say(Type.ATTACHED, m.Attached(str(agent.arena.path), agent.arena.arena.identity))
    agent.peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        agent.peer.recv(1)
    assert agent.frames == []
