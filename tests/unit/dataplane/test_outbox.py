import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from router.dataplane.outbox import Outbox


class Wire(asyncio.Transport):
    """Notes each write as one system call would take it."""

    def __init__(self, name: str, log: list[tuple[str, bytes]]) -> None:
        super().__init__()
        self.name = name
        self.log = log
        self.closing = False
        self.aborted = False
        self.broken = False

    def write(self, data: object) -> None:
        if self.broken:
            raise RuntimeError("no more")
        assert isinstance(data, bytes)
        self.log.append((self.name, data))

    def writelines(self, list_of_data: Sequence[bytes]) -> None:  # type: ignore[override]
        self.write(b"|".join(list_of_data))

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.aborted = True


class Loop:
    """Calls back when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


@pytest.fixture
def log() -> list[tuple[str, bytes]]:
    return []


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def outbox(loop: Loop) -> Outbox:
    made = Outbox()
    made.gather(loop.call_soon)
    return made


def test_everything_goes_out_at_once_until_there_is_a_loop(log: list[tuple[str, bytes]]) -> None:
    outbox, a = Outbox(), Wire("a", log)
    outbox.write(a, b"1")
    outbox.writelines(a, (b"2", b"3"))
    assert log == [("a", b"1"), ("a", b"2|3")]


def test_a_long_body_is_not_copied_behind_its_head(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a = Wire("a", log)
    for body in (b"x" * 16_384, b"x" * 16_385):
        outbox.writelines(a, (b"head", body))
    outbox.writelines(a, (b"head", b"be", b"tween"))
    loop.turn()
    assert [written.count(b"|") for _, written in log] == [0, 1, 2]


def test_writes_wait_for_the_end_of_the_turn_and_keep_their_order(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a, b = Wire("a", log), Wire("b", log)
    outbox.write(a, b"1")
    outbox.writelines(b, (b"2", b"3"))
    outbox.write(a, b"4")
    assert log == []
    assert len(loop.soon) == 1  # one call back for all of them
    loop.turn()
    assert log == [("a", b"1"), ("b", b"23"), ("a", b"4")]
    loop.turn()
    assert len(log) == 3


def test_each_turn_of_the_loop_is_asked_for(outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]) -> None:
    a = Wire("a", log)
    for data in (b"1", b"2"):
        outbox.write(a, data)
        loop.turn()
    assert log == [("a", b"1"), ("a", b"2")]


def test_pieces_for_one_client_are_one_write(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a = Wire("a", log)
    for data in (b"1", b"2", b"3"):
        outbox.write(a, data)
    loop.turn()
    # Joined: of asyncio's releases, some do not tell that a client is slow to whom lines are written.
    assert log == [("a", b"123")]


def test_what_follows_a_request_is_written_after_all_of_it(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a = Wire("a", log)
    sent = (b"1", b"2")
    outbox.writelines(a, sent)
    outbox.write(a, b"3")
    loop.turn()
    assert log == [("a", b"1|2|3")]
    assert sent == (b"1", b"2")


def test_nobody_waits_for_more_than_64_others(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    wires = [Wire(str(number), log) for number in range(70)]
    for wire in wires[:63]:
        outbox.write(wire, b"x")
    assert log == []
    outbox.write(wires[63], b"x")
    assert len(log) == 64
    for wire in wires[64:]:
        outbox.writelines(wire, (b"x",))
    loop.turn()
    assert [name for name, _ in log] == [str(number) for number in range(70)]


def test_answers_are_gathered_up_to_256_kib_and_requests_without_a_limit(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a, b, large = Wire("a", log), Wire("b", log), bytes(100 * 1024)
    for _ in range(8):
        outbox.writelines(b, (large, large))
    outbox.write(a, large)
    outbox.write(a, large)
    assert log == []
    outbox.write(a, large)
    assert len(log) == 9
    outbox.write(a, large)
    assert len(log) == 9
    loop.turn()
    assert len(log) == 10


def test_what_waits_for_a_closing_transport_is_dropped(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a, b = Wire("a", log), Wire("b", log)
    outbox.write(a, b"1")
    outbox.write(b, b"2")
    a.closing = True
    loop.turn()
    assert log == [("b", b"2")]


def test_that_a_request_was_not_sent_is_known_once_its_transport_is_lost(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a, b = Wire("a", log), Wire("b", log)
    outbox.writelines(a, (b"1",))
    outbox.write(b, b"2")
    outbox.write(a, b"3")
    assert outbox.forget(a)
    assert not outbox.forget(a)
    loop.turn()
    assert log == [("b", b"2")]
    assert not outbox.forget(b)


def test_it_is_known_too_where_the_transport_is_closing_first_and_of_requests_only(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]]
) -> None:
    a, b = Wire("a", log), Wire("b", log)
    outbox.writelines(a, (b"1",))
    outbox.write(b, b"2")
    a.closing = b.closing = True
    loop.turn()
    assert log == []
    assert outbox._dropped == {a}
    assert outbox.forget(a)
    assert not outbox.forget(a)
    assert not outbox.forget(b)
    assert not outbox._dropped


def test_one_that_raises_is_aborted_and_costs_the_others_nothing(
    outbox: Outbox, loop: Loop, log: list[tuple[str, bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Wire("a", log), Wire("b", log)
    a.broken = True
    outbox.write(a, b"1")
    outbox.write(b, b"2")
    with caplog.at_level(logging.ERROR):
        loop.turn()
    assert a.aborted
    assert log == [("b", b"2")]
    assert "writing to a connection failed" in caplog.text


def test_to_stop_gathering_sends_what_waits(outbox: Outbox, log: list[tuple[str, bytes]]) -> None:
    a = Wire("a", log)
    outbox.write(a, b"1")
    outbox.gather(None)
    outbox.write(a, b"2")
    assert log == [("a", b"1"), ("a", b"2")]
