"""Publishes a simulated replica's KV events over ZMQ, as vLLM does, and replays the last ones on demand."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from router.base.errors import HomingError
from router.base.tasks import TaskOwner
from router.simulator import tokens

REPLAY_PORT: Final = 10
"""The replay port is so many above the publisher's."""

_TOPIC: Final = b""
_END: Final = (-1).to_bytes(8, "big", signed=True)
_KEPT: Final = 10_000
"""Batches that can be replayed."""
_KNOWN: Final = 1 << 18
"""Blocks whose tokens are remembered: several times those of a cache, since one that was evicted may be
stored again by a request that has waited."""


class KvEventPublisher:
    """The events of one life of a replica, numbered from 0; those of one turn of the loop are one batch."""

    def __init__(self, host: str, port: int, block_tokens: int, *, kept: int = _KEPT) -> None:
        self._at = (host, port)
        self._block_tokens = block_tokens
        self._tokens: dict[int, bytes] = {}
        """Of blocks, by name."""
        self._batch: list[dict[str, Any]] = []
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self._next = 0
        self._context = zmq.asyncio.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self._tasks = TaskOwner()

    def start(self) -> None:
        """Bind. Raises `HomingError` where a port cannot be had."""
        host, port = self._at
        try:
            self._publisher.bind(f"tcp://{host}:{port}")
            self._replay.bind(f"tcp://{host}:{port + REPLAY_PORT}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise HomingError(f"cannot publish KV events on {host}:{port}: {error.strerror}") from error
        self._tasks.spawn(self._serve_replays(), name="replay KV events")

    async def close(self) -> None:
        """End as a killed process does. May be called again."""
        await self._tasks.close()
        self._context.destroy(linger=0)

    def learn(self, hashes: Sequence[int], prompt: bytes) -> None:
        """Of which tokens a request's blocks are made. Of those that nobody told of, events tell none."""
        width = self._block_tokens * tokens.TOKEN_BYTES
        for at, name in enumerate(hashes):
            if name not in self._tokens:
                self._tokens[name] = prompt[at * width : (at + 1) * width]
        while len(self._tokens) > _KNOWN:
            del self._tokens[next(iter(self._tokens))]

    def stored(self, hashes: Sequence[int], parent: int | None, session: str | None) -> None:
        """Blocks are there."""
        known = [self._tokens.get(name) for name in hashes]
        ids = tokens.to_ids(b"".join(filter(None, known))) if None not in known else []
        self._add(
            {
                "type": "BlockStored",
                "block_hashes": list(hashes),
                "parent_block_hash": parent,
                "token_ids": ids,
                "block_size": self._block_tokens,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "group_idx": 0,
                "session_id": session,
            }
        )

    def removed(self, hashes: Sequence[int]) -> None:
        """Blocks are gone: an event each, the deepest first, as they are evicted."""
        for hash_ in reversed(hashes):
            self._add({"type": "BlockRemoved", "block_hashes": [hash_], "medium": "GPU", "group_idx": 0})

    def cleared(self) -> None:
        """No block is there."""
        self._add({"type": "AllBlocksCleared"})

    def _add(self, event: dict[str, Any]) -> None:
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._flush)
        self._batch.append(event)

    def _flush(self) -> None:
        events, self._batch = self._batch, []
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._sent.append((self._next, payload))
        with suppress(zmq.ZMQError):
            self._publisher.send_multipart([_TOPIC, self._next.to_bytes(8, "big"), payload], zmq.NOBLOCK)
        self._next += 1

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            start = int.from_bytes(frames[2], "big")
            for number, payload in tuple(self._sent):
                if number >= start:
                    await self._replay.send_multipart(
                        [frames[0], b"", _TOPIC, number.to_bytes(8, "big"), payload]
                    )
            await self._replay.send_multipart([frames[0], b"", b"", _END, b""])
