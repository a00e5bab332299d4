"""A request of the router's own to a replica, and its whole answer: for what no client waits for directly.

Knows nothing of what is asked, nor of turns. Whoever stops waiting ends the request at the replica.
"""

import asyncio
from typing import NamedTuple

from router.base.system import is_own_shortage, system_words
from router.core.observe import Outcome
from router.dataplane.answer_head import ResponseHead
from router.dataplane.pool import Pool
from router.dataplane.upstream import Receiver, UpstreamConnection


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    body: bytes


class CallError(Exception):
    """There is no answer."""

    def __init__(self, outcome: Outcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why
        """To go on in a sentence that begins with the replica."""


class _BrokenError(Exception):
    """The connection ended."""

    def __init__(self, why: str, *, answered: bool) -> None:
        super().__init__(why)
        self.why = why
        self.answered = answered


class Call(Receiver):
    """One request. `ask` may be awaited once."""

    __slots__ = ("_answer", "_most", "_pieces", "_size", "_status")

    def __init__(self, most: int) -> None:
        """`most`: bytes of an answer at most."""
        self._most = most
        self._answer: asyncio.Future[Reply] | None = None
        self._status = 0
        self._pieces: list[bytes] = []
        self._size = 0

    async def ask(self, pool: Pool, parts: tuple[bytes | memoryview, ...]) -> Reply:
        """Send `parts`, head and body, and wait for the answer. Raises `CallError`."""
        # Nothing is awaited in the midst of an exception: compiled code would leave it to whatever runs then.
        broken: _BrokenError | None = None
        idle = pool.take()
        if idle is not None:
            try:
                return await self._over(idle, parts)
            except _BrokenError as error:
                broken = error
            if broken.answered:
                raise await _looked_after(pool, broken.why)
            # The replica closed the idle connection as the request was on its way: it goes again.
        try:
            made = await pool.connect()
        except OSError as error:
            raise _unreachable(error) from None
        try:
            return await self._over(made, parts)
        except _BrokenError as error:
            broken = error
        raise await _looked_after(pool, broken.why)

    def fail(self, outcome: Outcome, why: str) -> None:
        """Wait no longer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CallError(outcome, why))

    async def _over(self, connection: UpstreamConnection, parts: tuple[bytes | memoryview, ...]) -> Reply:
        self._answer = asyncio.get_running_loop().create_future()
        self._pieces = []
        self._size = 0
        connection.send(self, parts, head_only=False)
        whole = False
        try:
            reply = await self._answer
            whole = True
        finally:
            if not whole:
                connection.abort()
        return reply

    def on_head(self, head: ResponseHead) -> None:
        self._status = head.status

    def on_piece(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._most:
            self.fail(Outcome.CUT, f"sent an answer of more than {self._most} bytes, the router's limit")
        else:
            self._pieces.append(piece)

    def on_end(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Reply(self._status, b"".join(self._pieces)))

    def on_broken(self, why: str, *, answered: bool, taken: bool) -> None:  # noqa: ARG002 - the receiver's
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(_BrokenError(why, answered=answered))


async def _looked_after(pool: Pool, why: str) -> CallError:
    """Whether a replica that broke off takes new connections, or has died."""
    try:
        pool.put(await pool.connect())
    except OSError as error:
        return CallError(Outcome.CUT if is_own_shortage(error) else Outcome.DIED, why)
    return CallError(Outcome.CUT, why)


def _unreachable(error: OSError) -> CallError:
    outcome = Outcome.SHORTAGE if is_own_shortage(error) else Outcome.CONNECT_FAILED
    return CallError(outcome, f"cannot be reached: {system_words(error)}")
