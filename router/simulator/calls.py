"""A request at a simulated replica: as it arrived, what is to happen to it, and what became of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import orjson
from aiohttp import web

from router.simulator.faults import Fault
from router.simulator.handoffs import Fetch


@dataclass(slots=True)
class Record:
    """A request as it arrived, and what became of it."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case; of a repeated header, the last."""
    body: bytes = b""
    at: float = 0.0
    """Simulated seconds since the start."""
    status: int | None = None
    """`None` until an answer is complete, and for ever where none was."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """`None` before the first token."""
    aborted: bool = False
    """The connection ended before the answer did."""
    fault: str | None = None

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return orjson.loads(self.body)

    def shown(self) -> dict[str, Any]:
        """For `/sim/requests`."""
        return {
            "method": self.method,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body.decode(errors="replace"),
            "at": self.at,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "aborted": self.aborted,
            "fault": self.fault,
        }


class Wish(NamedTuple):
    """What a request says that its replica's KV agent has to know."""

    request: str
    """Its id, as the engine has it."""
    tenant: str
    params: dict[str, Any] | None
    """For transfers, as it was sent."""


@dataclass(slots=True)
class Call:
    """A request being answered."""

    request: web.Request
    record: Record
    fault: Fault | None = None
    """What is to happen to the body of the answer."""
    fetch: Fetch | None = None
    """What it fetches from another replica first."""
    offer: dict[str, Any] | None = None
    """Of its blocks, which are kept for another replica when it has finished."""
    wish: Wish | None = None
    """For its prompt's KV."""


class HangError(Exception):
    """The request is never answered."""


def abort(transport: asyncio.Transport | None) -> None:
    """Break a connection, if it is still there."""
    if transport is not None:
        transport.abort()


async def never() -> NoReturn:
    """Wait until the connection ends, which cancels the handler."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("a future that nobody keeps was resolved")
