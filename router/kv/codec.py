"""Blocks in about half or a quarter of their bytes: 8-bit numbers, and a scale for each vector of a head.

Lossy. Wherever an engine packs its KV, a head's numbers of one token lie together, so that a run of as many
numbers as a head has dimensions shares one scale. What this does to a model's answers is the operator's to
weigh; `tests/engine/measure.py int8` measures it. Needs numpy (`homing[int8]`), imported when it is used.
"""

from typing import Any, Final, Literal

from router.kv.keys import Namespace

CodecName = Literal["raw", "int8"]

_SCALE_BYTES: Final = 4
_STEPS: Final = 127
_BYTES: Final = {"float32": 4, "float16": 2, "half": 2, "bfloat16": 2}


class CodecFault(ValueError):
    """These blocks cannot be coded. The text says why."""


class Int8:
    """Codes the blocks of one namespace. Raises `CodecFault`.

    A coded block is all scales, 32-bit floats, and then all numbers, a byte each.
    """

    __slots__ = ("_dtype", "_np", "_rows", "_width", "coded_bytes")

    def __init__(self, space: Namespace) -> None:
        try:
            import numpy  # not by its nickname: it may not be there
        except ImportError:
            raise CodecFault("int8 needs numpy: pip install 'homing[int8]'") from None
        self._np: Any = numpy
        self._dtype = space.kv_dtype.removeprefix("torch.")
        size = _BYTES.get(self._dtype)
        if size is None:
            raise CodecFault(f"int8 codes float32, float16 and bfloat16, not {space.kv_dtype}")
        self._width = space.head_dim
        self._rows, left = divmod(space.block_bytes, size * self._width)
        if left:
            raise CodecFault(
                f"{space.block_bytes} bytes are no multiple of {self._width} numbers of {size} bytes"
            )
        self.coded_bytes = self._rows * (_SCALE_BYTES + self._width)

    def encode(self, block: memoryview) -> memoryview | None:
        """The block in fewer bytes; `None` where it holds numbers that are none."""
        np = self._np
        numbers = self._read(block).reshape(self._rows, self._width)
        most = np.abs(numbers).max(axis=1, keepdims=True)
        if not np.isfinite(most).all():
            return None
        scales = (most / _STEPS).astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(scales > 0, numbers / scales, 0)
        coded = np.clip(np.rint(steps), -_STEPS, _STEPS).astype(np.int8)
        return memoryview(scales.tobytes() + coded.tobytes())

    def decode(self, coded: memoryview, block: memoryview) -> None:
        """Write what was coded into `block`, as nearly as it is known."""
        np = self._np
        split = self._rows * _SCALE_BYTES
        scales = np.frombuffer(coded[:split], dtype=np.float32).reshape(self._rows, 1)
        steps = np.frombuffer(coded[split:], dtype=np.int8).reshape(self._rows, self._width)
        numbers = steps.astype(np.float32) * scales
        if self._dtype == "bfloat16":
            bits = numbers.view(np.uint32)
            # To the nearest, and to the even one of two: what is cut off may carry over.
            block[:] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
        elif self._dtype == "float32":
            block[:] = numbers.tobytes()
        else:
            block[:] = numbers.astype(np.float16).tobytes()

    def _read(self, block: memoryview) -> Any:
        np = self._np
        if self._dtype == "float32":
            return np.frombuffer(block, dtype=np.float32)
        if self._dtype == "bfloat16":
            return (np.frombuffer(block, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
        return np.frombuffer(block, dtype=np.float16).astype(np.float32)


def codec_for(name: CodecName, space: Namespace) -> Int8 | None:
    """`None`: blocks go as they are. Raises `CodecFault`."""
    return Int8(space) if name == "int8" else None
