"""Bytes arrive where they belong, for every layout of a cache, and in order on a device."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from router.connector.copies import DeviceCopies, HostCopies, byte_rows, copies_for
from router.connector.copying import Copies, Pair


def caches() -> list[torch.Tensor]:
    """Three layers of five blocks: plain, of a packed kind, and of another type and shape."""
    plain = torch.randn(5, 2, 4, 8)
    blocks_outermost = torch.randn(5, 3, 2, 4, 8)[:, 1]  # its blocks lie apart
    return [plain, blocks_outermost, torch.randn(5, 7).to(torch.bfloat16)]


SIZE = 2 * (2 * 4 * 8 * 4) + 7 * 2


def content(tensors: list[torch.Tensor], block: int) -> bytes:
    return b"".join(tensor[block].contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors)


class Order:
    """Streams that note in what order work is given to them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.done = False

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.events.append("after compute")
        yield
        self.events.append("left")

    def after_compute(self) -> AbstractContextManager[None]:
        return self._inside()

    def mark(self) -> Callable[[], bool]:
        self.events.append("marked")
        return lambda: self.done


@pytest.mark.parametrize("kind", ["host", "device"])
def test_a_block_goes_to_the_arena_and_back_into_another_block(kind: str) -> None:
    tensors = caches()
    copies: Copies = copies_for(tensors) if kind == "host" else DeviceCopies(byte_rows(tensors), Order())
    arena = [bytearray(SIZE) for _ in range(2)]
    before = [content(tensors, block) for block in range(5)]
    copies.save([Pair(3, memoryview(arena[0])), Pair(1, memoryview(arena[1]))])
    assert [bytes(part) for part in arena] == [before[3], before[1]]
    copies.load([Pair(0, memoryview(arena[0])), Pair(4, memoryview(arena[1]))])
    assert [content(tensors, block) for block in range(5)] == [before[3], *before[1:4], before[1]]


def test_a_copy_in_memory_is_complete_at_once() -> None:
    tensors = caches()
    copies = copies_for(tensors)
    assert isinstance(copies, HostCopies)
    assert copies.save([Pair(3, memoryview(bytearray(SIZE)))])()
    assert copies.load([])()


def test_a_copy_on_a_device_is_ordered_after_the_computation_and_complete_when_its_stream_says_so() -> None:
    order = Order()
    copies = DeviceCopies(byte_rows(caches()), order)
    for begin in (copies.save, copies.load):
        order.events, order.done = [], False
        is_done = begin([Pair(3, memoryview(bytearray(SIZE)))])
        assert order.events == ["after compute", "marked", "left"]
        assert not is_done()
        order.done = True
        assert is_done()


def test_a_cache_whose_blocks_are_not_of_one_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        copies_for([torch.randn(4, 2, 6).transpose(1, 2)])
