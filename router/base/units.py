"""Durations and sizes as people write them. Knows nothing of where the text comes from."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

_SECONDS: Final[Mapping[str, Decimal]] = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_BYTES: Final[Mapping[str, int]] = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
# The number of digits is bounded: a longer figure is a slip of the hand, and would overflow later.
_WRITTEN: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([A-Za-z]+)")


def parse_duration(text: str | float) -> float:
    """`150ms`, `30s`, `5m`, `2h` or `1d` → seconds. A bare number has no unit and is refused, except 0.

    Raises `ValueError` with a valid example.
    """
    if _is_zero(text):
        return 0.0
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _SECONDS:
        hint = _missing_unit(text, "s")
        raise ValueError(f"{_shown(text)} is not a duration; {hint}write 150ms, 30s, 5m, 2h or 1d")
    return float(Decimal(match[1]) * _SECONDS[match[2]])


def parse_size(text: str | float) -> int:
    """`512B`, `64KB` (1000), `64MiB` (1024²), … → bytes. A bare number is refused, except 0.

    Raises `ValueError` with a valid example, also where the figure is not a whole number of bytes.
    """
    if _is_zero(text):
        return 0
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _BYTES:
        hint = _missing_unit(text, "MiB")
        raise ValueError(f"{_shown(text)} is not a size; {hint}write 512B, 64KiB, 64MiB or 2GiB")
    size = Decimal(match[1]) * _BYTES[match[2]]
    if size != int(size):
        raise ValueError(f"{_shown(text)} is not a whole number of bytes; write 512B, 64KiB, 64MiB or 2GiB")
    return int(size)


def format_duration(seconds: float) -> str:
    """Seconds in the largest unit that divides them: what `parse_duration` reads back unchanged."""
    # By its shortest form, which is what was written: 0.1 is a tenth, not its nearest binary fraction.
    exact = Decimal(repr(seconds))
    for unit in ("d", "h", "m", "s"):
        if exact and exact % _SECONDS[unit] == 0:
            return f"{int(exact / _SECONDS[unit])}{unit}"
    return f"{(exact / _SECONDS['ms']).normalize():f}ms" if exact else "0s"


def format_size(size: int) -> str:
    """Bytes in the largest binary unit that divides them: what `parse_size` reads back unchanged."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def _is_zero(text: str | float) -> bool:
    # `False == 0` in Python; as a duration it is a mistake.
    return not isinstance(text, bool) and text in (0, "0")


def _shown(text: str | float) -> str:
    return f"'{text}'"


def _missing_unit(text: str | float, unit: str) -> str:
    """A word on the commonest slip, a number without its unit; empty for any other."""
    if isinstance(text, bool) or re.fullmatch(r"[0-9]+(\.[0-9]+)?", str(text)) is None:
        return ""
    return f"it has no unit (did you mean {text}{unit}?); "
