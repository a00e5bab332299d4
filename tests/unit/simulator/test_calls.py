"""What is kept of a request, and how one is left without an answer."""

import asyncio

import pytest

from router.simulator.calls import Record, abort, never


def test_a_record_is_shown_whatever_its_body_is() -> None:
    record = Record("POST", "/v1/x", {"host": "a"}, b'{"a": 1}', at=2.0)
    assert record.json == {"a": 1}
    shown = record.shown()
    assert (shown["body"], shown["status"], shown["at"]) == ('{"a": 1}', None, 2.0)
    assert Record("POST", "/", {}, b"\xff").shown()["body"] == "\ufffd"


def test_a_connection_that_is_gone_need_not_be_broken() -> None:
    class Transport(asyncio.Transport):
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    transport = Transport()
    abort(transport)
    abort(None)
    assert transport.aborted == 1


async def test_never_ends_when_it_is_cancelled() -> None:
    waiting = asyncio.ensure_future(never())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
