"""Every case of the table of strictness, byte by byte on sockets. The table is in `support/strictness/`."""

import re

import orjson
import pytest
from support.plane import data_plane, settled, until
from support.raw import RawClient, RawReplica, RawResponse, Request, Stream, raw_client, raw_replica
from support.strictness.cases import BODY, OK, OK_ANSWER, Case, Seen, Then, Trouble, chunks, head, sized
from support.strictness.page import PAGE, page
from support.strictness.refused import REFUSED
from support.strictness.served import SERVED
from support.strictness.trouble import TROUBLE

from router.core.plan import Plan
from router.core.strategies.priced import Priced

# What the router says of itself to a replica.
OWN = ("host", "x-request-id", "x-session-id", "content-length", "content-type")


def slug(case: Case | Trouble) -> str:
    return re.sub(r"\W+", "-", case.name).strip("-")


async def ok(_request: Request, stream: Stream) -> None:
    await stream.send(OK_ANSWER)


def seen(request: Request) -> Seen:
    """A request as the table writes it."""
    lines = [line for line in request.head.decode("latin-1").split("\r\n")[1:] if line]
    assert sum(line.startswith("content-length:") for line in lines) <= 1
    assert not any(line.lower().startswith("transfer-encoding") for line in lines)
    return Seen(request.line, request.body, tuple(line for line in lines if line.split(":")[0] not in OWN))


async def answers(client: RawClient, case: Case) -> list[RawResponse]:
    return [await client.response(head_only=case.head_only) for _ in case.statuses]


async def play(case: Case, replica: RawReplica) -> list[RawResponse]:
    """Send what the case sends, read what it says, and see that the connection is as it says."""
    plan = Plan(name="p", strategy=Priced(), refuse_reserved=case.refuse_reserved)
    async with data_plane([replica.url], plan=plan, limits=case.limits) as plane:
        async with raw_client(plane.port) as client:
            for at in range(0, len(case.sent), 1 if case.drip else len(case.sent)):
                await client.send(case.sent[at : at + 1] if case.drip else case.sent)
            if case.half_close:
                client.writer.write_eof()
            if case.interim:
                assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            got = await answers(client, case)
            if case.closed:
                assert await client.closed() == b""
            else:
                health = await client.exchange(b"GET /health HTTP/1.1\r\nHost: router\r\n\r\n")
                assert (health.status, health.body) == (200, b'{"status":"ok"}')
            await settled(plane)
        await until(lambda: not plane.connections)
    return got


@pytest.mark.parametrize("case", REFUSED, ids=slug)
async def test_refused_before_any_replica_sees_it(case: Case) -> None:
    async with raw_replica(ok) as replica:
        got = await play(case, replica)
        assert [response.status for response in got] == list(case.statuses)
        refusal = got[-1]
        assert refusal.json()["error"]["message"]  # type: ignore[index]
        assert (refusal.headers.get("connection") == "close") == case.closed
        assert replica.connections == 0


@pytest.mark.parametrize("case", SERVED, ids=slug)
async def test_served_right(case: Case) -> None:
    async with raw_replica(ok) as replica:
        got = await play(case, replica)
        assert [response.status for response in got] == list(case.statuses)
        assert [response.body for response in got if response.status == 200] == [
            b"" if case.head_only else OK for _ in case.seen
        ]
        assert tuple(map(seen, replica.requests)) == case.seen


@pytest.mark.parametrize("case", TROUBLE, ids=slug)
async def test_trouble_with_a_replica(case: Trouble) -> None:
    async def answer(_request: Request, stream: Stream) -> None:
        if len(replica.requests) > 1:
            await stream.send(OK_ANSWER)
            return
        stream.writer.write(case.answer)
        if case.then is Then.CLOSE:
            stream.writer.close()
        elif case.then is Then.RESET:
            await stream.writer.drain()
            stream.abort()

    async with raw_replica(answer) as replica, data_plane([replica.url]) as plane:
        replica.at_head = case.at_head
        async with raw_client(plane.port) as client:
            await client.send(case.asked or sized())
            if case.whole:
                got = await client.response(head_only=case.asked.startswith(b"HEAD") or case.status == 304)
            else:
                start, end, rest = (await client.closed()).partition(b"\r\n\r\n")
                got = RawResponse(start + end, rest, rest)
            assert got.status == case.status
            if case.body is None:
                assert "replica r0" in got.json()["error"]["message"]  # type: ignore[index]
            elif case.error_event:
                assert got.body.startswith(case.body)
                event = got.body[len(case.body) :]
                assert "replica r0" in orjson.loads(event.removeprefix(b"data: "))["error"]["message"]
            elif case.whole:
                assert got.body == case.body
            else:
                assert not got.wire.endswith(b"0\r\n\r\n")
                assert case.body in got.wire
            lines = got.head.decode("latin-1").split("\r\n")
            assert set(case.has) <= set(lines)
            assert not {line.split(":")[0].lower() for line in lines[1:]} & set(case.lacks)
            assert sum(line.startswith("x-request-id:") for line in lines) == 1
            await settled(plane)
        replica.at_head = False
        async with raw_client(plane.port) as client:
            # Whatever came behind the answer must not be taken for the next one.
            following = await client.exchange(sized())
            assert (following.status, following.body) == (200, OK)
            assert (replica.requests[-1].connection == 0) == case.reused
            assert replica.requests[-1].body == BODY


async def test_a_body_in_crumbs_is_held_in_few_pieces() -> None:
    async with data_plane([]) as plane, raw_client(plane.port) as client:
        await client.send(chunks(b"2\r\n  \r\n" * 50_000))
        await until(lambda: plane.held_bytes == 100_000)
        (connection,) = plane.connections
        assert len(connection._body) < 40_000  # one read holds that many at most, before they are joined
        await client.send(b"2\r\n  \r\n")
        await until(lambda: plane.held_bytes == 100_002)
        assert len(connection._body) < 1100
        client.abort()
        await until(lambda: plane.held_bytes == 0)


@pytest.mark.parametrize("what", ["names", "targets"])
async def test_what_is_remembered_of_heads_is_bounded_however_long_they_are(what: str) -> None:
    async with data_plane([]) as plane, raw_client(plane.port) as client:
        for number in range(40):
            mark = b"%d" % number + b"x" * 5000
            line, header = (b"/v1/thing", mark) if what == "names" else (b"/v1/" + mark, b"X")
            refused = await client.exchange(head(header + b": 1", start=b"GET " + line + b" HTTP/1.1"))
            assert refused.status == 503
        reader = plane.heads
        remembered = [*reader._lines, *reader._kinds, *reader._targets]
        assert max(map(len, remembered)) < 200


def test_the_page_says_what_is_tested() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_case_has_a_name_of_its_own() -> None:
    for cases in (REFUSED, SERVED, TROUBLE):
        assert len({case.name for case in cases}) == len(cases)
    assert len(REFUSED) + len(SERVED) + len(TROUBLE) >= 80
