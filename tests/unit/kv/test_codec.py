"""int8: small, near, the same every time, and refused where it cannot be."""

import builtins
import sys
from dataclasses import replace

import pytest
from support.kv import NAMESPACE

from router.kv.codec import CodecFault, Int8, codec_for

np = pytest.importorskip("numpy")

WIDTH, ROWS = 32, 256


def space(dtype):
    size = 4 if "32" in dtype else 2
    return replace(NAMESPACE, kv_dtype=dtype, head_dim=WIDTH, block_bytes=ROWS * WIDTH * size)


def bits(numbers, dtype):
    """The numbers as an engine would have them in memory."""
    if "bfloat16" in dtype:
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return numbers.astype(np.float32 if "32" in dtype else np.float16).tobytes()


def numbers_of(raw, dtype):
    if "bfloat16" in dtype:
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, np.float32 if "32" in dtype else np.float16).astype(np.float32)


@pytest.mark.parametrize("dtype", ["torch.float32", "float16", "torch.bfloat16"])
def test_what_comes_back_is_near_in_every_heads_own_scale(dtype):
    chance = np.random.default_rng(1)
    # Heads of very different sizes: one scale for all would lose the small ones.
    numbers = chance.normal(size=(ROWS, WIDTH)) * np.exp(chance.normal(size=(ROWS, 1)) * 2)
    raw = bits(numbers, dtype)
    codec = Int8(space(dtype))
    coded = codec.encode(memoryview(raw))
    assert coded.nbytes == codec.coded_bytes < 0.6 * len(raw)
    assert coded == codec.encode(memoryview(raw)), "equal bytes are coded alike"
    back = bytearray(len(raw))
    codec.decode(coded, memoryview(back))
    before, after = (numbers_of(one, dtype).reshape(ROWS, WIDTH) for one in (raw, bytes(back)))
    step = np.abs(before).max(axis=1, keepdims=True) / 127
    # Half a step, and what the number type itself rounds off.
    assert (np.abs(after - before) <= 0.5 * step + 2**-8 * np.abs(before) + 1e-6).all()


def test_nothing_stays_nothing():
    codec = Int8(space("float32"))
    back = bytearray(b"x" * codec._rows * WIDTH * 4)
    codec.decode(codec.encode(memoryview(bytes(len(back)))), memoryview(back))
    assert bytes(back) == bytes(len(back))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_not_coded(bad):
    numbers = np.ones((ROWS, WIDTH), np.float32)
    numbers[7, 3] = bad
    assert Int8(space("float32")).encode(memoryview(numbers.tobytes())) is None


def test_what_cannot_be_coded_is_refused_with_the_reason():
    with pytest.raises(CodecFault, match="not fp8"):
        Int8(replace(NAMESPACE, kv_dtype="fp8"))
    with pytest.raises(CodecFault, match="4097 bytes are no multiple of 8 numbers of 4 bytes"):
        Int8(replace(NAMESPACE, block_bytes=4097))
    assert codec_for("raw", replace(NAMESPACE, kv_dtype="fp8")) is None


def test_without_numpy_it_says_what_to_install(monkeypatch):
    plain = builtins.__import__

    def without(name, *rest, **more):
        if name == "numpy":
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(CodecFault, match=r"pip install 'homing\[int8\]'"):
        Int8(NAMESPACE)
