"""Listening sockets and a snapshot, from one router to the next over a Unix socket."""

import asyncio
import socket
from contextlib import asynccontextmanager
from threading import Thread

import pytest
from support.plane import until

from router.base.errors import HomingError
from router.controlplane.handover import _READY_S, HandoverServer, Offer, take_over

WANTED = {"data": "127.0.0.1:8080"}


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


class Old:
    """A router that runs."""

    def __init__(self, path, *listening, snapshot=b"snap"):
        self.asked = []
        self.taken = 0
        self._offer = Offer({"data": [one.fileno() for one in listening]}, snapshot)
        self.server = HandoverServer(path, self.offer, self.count)

    async def offer(self, wanted):
        self.asked.append(dict(wanted))
        return self._offer

    def count(self):
        self.taken += 1


@asynccontextmanager
async def old_router(path, *listening, **more):
    old = Old(path, *listening, **more)
    old.server.start()
    try:
        yield old
    finally:
        await old.server.close()


async def test_a_socket_and_a_large_snapshot_are_handed_over_and_connections_go_on(tmp_path, listening):
    path, snapshot = tmp_path / "socket", bytes(range(256)) * 40_000
    async with old_router(path, listening, snapshot=snapshot) as old:
        assert path.stat().st_mode & 0o777 == 0o600
        taken = await take_over(path, WANTED)
        assert (old.asked, taken.snapshot) == ([WANTED], snapshot)
        [mine] = taken.sockets["data"]
        assert old.taken == 0
        taken.confirm()
        await until(lambda: old.taken == 1)
        address = listening.getsockname()
        listening.close()
        with socket.create_connection(address, timeout=60.0), mine:
            mine.settimeout(60.0)
            mine.accept()[0].close()


async def test_nobody_there_is_nothing_to_take_over(tmp_path, listening):
    path = tmp_path / "socket"
    assert await take_over(path, WANTED) is None
    async with old_router(path, listening):
        pass
    assert not path.exists()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert await take_over(path, WANTED) is None


async def test_a_successor_that_does_not_confirm_changes_nothing(tmp_path, listening, caplog):
    path = tmp_path / "socket"
    async with old_router(path, listening) as old:
        (await take_over(path, WANTED)).close()
        await until(lambda: "this router goes on" in caplog.text)
        assert old.taken == 0
        taken = await take_over(path, WANTED)
        taken.confirm()
        taken.close()
        await until(lambda: old.taken == 1)


def test_a_successor_that_stalls_does_not_hold_up_the_end(tmp_path, listening):
    path = tmp_path / "socket"

    async def stalls() -> None:
        async with old_router(path, listening):
            taken = await take_over(path, WANTED)
        taken.close()

    ending = Thread(target=asyncio.run, args=(stalls(),), daemon=True)
    ending.start()
    ending.join(_READY_S / 2)
    assert not ending.is_alive()


@pytest.mark.parametrize("stage", ["silent", "half of the head", "half of the snapshot"])
async def test_a_router_that_stalls_does_not_hold_up_the_end_of_whoever_would_take_over(tmp_path, stage):
    path = tmp_path / "socket"
    said = {
        "silent": b"",
        "half of the head": b'{"version"',
        "half of the snapshot": b'{"version": 1, "sockets": [], "snapshot": 10}\nshort',
    }
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(path))
        odd.listen(1)
        taking = asyncio.ensure_future(take_over(path, WANTED))
        connection, _ = await asyncio.to_thread(odd.accept)
        with connection:
            connection.sendall(said[stage])
            await asyncio.sleep(0.05)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            connection.settimeout(10.0)
            while connection.recv(1000):
                pass  # what it asked, and then that it has gone


@pytest.mark.parametrize(
    "said", [b"", b"nonsense\n", b"[]\n", b'{"version": 9, "wanted": {}}\n', b"x" * 200_000]
)
async def test_whoever_says_something_else_is_sent_away(tmp_path, listening, said):
    path = tmp_path / "socket"
    async with old_router(path, listening) as old:

        def talk():
            with socket.socket(socket.AF_UNIX) as other:
                other.settimeout(60.0)
                other.connect(str(path))
                try:
                    other.sendall(said)
                    other.shutdown(socket.SHUT_WR)
                    return other.recv(100)
                except (BrokenPipeError, ConnectionResetError):
                    return b""

        assert await asyncio.to_thread(talk) == b""
        assert (old.asked, old.taken) == ([], 0)
        taken = await take_over(path, WANTED)
        taken.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\n",
        b"{}\n",
        b'{"version": 1, "sockets": ["data"], "snapshot": 0}\n',
        b'{"version": 1, "sockets": [], "snapshot": -1}\n',
        b'{"version": 1, "sockets": [], "snapshot": 10}\nshort',
    ],
)
async def test_a_router_that_does_not_answer_as_it_should_is_an_error(tmp_path, answer):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(str(path))
        odd.listen(1)

        def talk():
            connection, _ = odd.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        talking = asyncio.ensure_future(asyncio.to_thread(talk))
        with pytest.raises(HomingError, match="does not hand over"):
            await take_over(path, WANTED)
        await talking


async def test_a_successor_listens_in_its_place_and_its_socket_is_left_alone(tmp_path, listening):
    path = tmp_path / "socket"
    async with old_router(path, listening) as first:
        async with old_router(path, listening) as second:
            await first.server.close()
            taken = await take_over(path, WANTED)
            taken.close()
            assert (first.asked, second.asked) == ([], [WANTED])


async def test_a_place_that_cannot_be_had_is_an_error_that_says_so(tmp_path):
    for path in (tmp_path / "no" / "socket", tmp_path / ("x" * 200)):
        with pytest.raises(HomingError, match="cannot listen on"):
            Old(path).server.start()
