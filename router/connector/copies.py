"""Copies blocks between the engine's caches and the arena.

A cache is opaque bytes, one row a block: kernels pack a block's inside as they like. A part of the arena
holds one block's rows of all caches, end to end. Knows nothing of requests.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from router.connector.copying import Copies, Pair


def byte_rows(caches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each cache as a table of bytes, one row a block, over the same memory.

    Raises `ValueError` where a block's bytes do not lie together.
    """
    rows = []
    for cache in caches:
        block = cache[0]
        if not block.is_contiguous():
            raise ValueError(f"a block of the cache {tuple(cache.shape)} is not contiguous")
        flat = cache.as_strided((cache.shape[0], block.numel()), (cache.stride(0), 1))
        rows.append(flat.view(torch.uint8))
    return rows


def copies_for(caches: Sequence[torch.Tensor]) -> Copies:
    """What copies from and to these. Raises `ValueError`."""
    rows = byte_rows(caches)
    if rows[0].device.type == "cpu":
        return HostCopies(rows)
    return DeviceCopies(rows, CudaStreams())


class HostCopies:
    """For caches in this machine's memory: each copy is complete when the call returns."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        # Slices of numpy arrays cost a tenth of torch's, and there is one for each layer of each block.
        self._rows = [row.numpy() for row in rows]

    def load(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        for block_id, part in pairs:
            at = 0
            source = _bytes_of(part)
            for row in self._rows:
                size = row.shape[1]
                row[block_id] = source[at : at + size]
                at += size
        return _complete

    def save(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        for block_id, part in pairs:
            at = 0
            target = _bytes_of(part)
            for row in self._rows:
                size = row.shape[1]
                target[at : at + size] = row[block_id]
                at += size
        return _complete


class Streams(Protocol):
    """The order of work on a device."""

    def after_compute(self) -> AbstractContextManager[None]:
        """What is done inside goes to a stream of our own, after all that was computed by now."""

    def mark(self) -> Callable[[], bool]:
        """Inside `after_compute`: tells whether all that was done in it is complete."""


class CudaStreams:
    """A second stream of the current device."""

    __slots__ = ("_side",)

    def __init__(self) -> None:
        self._side = torch.cuda.Stream()

    def after_compute(self) -> AbstractContextManager[None]:
        self._side.wait_stream(torch.cuda.current_stream())
        side: AbstractContextManager[None] = torch.cuda.stream(self._side)
        return side

    def mark(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        event.record(self._side)
        query: Callable[[], bool] = event.query
        return query


class DeviceCopies:
    """For caches on a device. Blocks are gathered into a buffer on the device by the stream that computes, so
    that it may go on at once; the slow way to the host is gone on a stream of our own.
    """

    __slots__ = ("_part_bytes", "_rows", "_streams")

    def __init__(self, rows: Sequence[torch.Tensor], streams: Streams) -> None:
        self._rows = rows
        self._streams = streams
        self._part_bytes = sum(row.shape[1] for row in rows)

    def load(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        with self._streams.after_compute():
            buffer, index = self._buffer(pairs)
            for line, pair in zip(buffer, pairs, strict=True):
                line.copy_(_tensor_of(pair.part), non_blocking=True)
            at = 0
            for row in self._rows:
                row.index_copy_(0, index, buffer[:, at : at + row.shape[1]])
                at += row.shape[1]
            return _keeping((buffer, index), self._streams.mark())

    def save(self, pairs: Sequence[Pair]) -> Callable[[], bool]:
        buffer, index = self._buffer(pairs)
        at = 0
        for row in self._rows:
            buffer[:, at : at + row.shape[1]] = row.index_select(0, index)
            at += row.shape[1]
        with self._streams.after_compute():
            for line, pair in zip(buffer, pairs, strict=True):
                _tensor_of(pair.part).copy_(line, non_blocking=True)
            return _keeping((buffer, index), self._streams.mark())

    def _buffer(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        device = self._rows[0].device
        buffer = torch.empty((len(pairs), self._part_bytes), dtype=torch.uint8, device=device)
        return buffer, torch.tensor([pair.block_id for pair in pairs], device=device)


def _complete() -> bool:
    return True


def _keeping(held: object, is_done: Callable[[], bool]) -> Callable[[], bool]:
    """`is_done`, which keeps `held` alive for as long as somebody asks."""

    def asked() -> bool:
        return is_done() if held is not None else True

    return asked


def _tensor_of(part: memoryview) -> torch.Tensor:
    return torch.frombuffer(part, dtype=torch.uint8)


def _bytes_of(part: memoryview) -> Any:
    # Over the same memory, and without a module of its own: numpy comes with torch.
    return _tensor_of(part).numpy()
