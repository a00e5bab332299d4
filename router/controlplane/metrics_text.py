"""Reads the few figures that routing needs out of a replica's Prometheus text.

The text is untrusted: it may be cut short, repeat itself, or be made to hurt. A figure that is not there,
or that cannot be right, is `None`; nothing here raises. Time and memory are linear in the text, whose
size the caller bounds.
"""

import math
import re
from typing import Final

from router.core.fleet import Report

# Far above anything real; a figure beyond is a fault of the exporter, not a load.
_MAX_REQUESTS: Final = 1e7
_MAX_BLOCK_TOKENS: Final = 10**6
_MAX_BLOCKS: Final = 10**9
_MAX_UNIX_S: Final = 1e11

# A series line of vLLM has about 300 characters, `cache_config_info` about 1,000.
_MAX_LINE: Final = 64 * 1024
# One series per engine of a data-parallel replica; more than this is no vLLM.
_MAX_SERIES: Final = 1024

# Atomic repeats: a label that does not end costs one pass, not one for each way to split it.
_LABEL: Final = re.compile(rb'[ \t]*+([A-Za-z_][A-Za-z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+,?+')
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,4})?")
_COUNT: Final = re.compile(rb"[0-9]{1,18}")

_Labels = dict[bytes, bytes]
_Series = list[tuple[_Labels, bytes]]


def parse_report(text: bytes) -> Report:
    """The figures in one `/metrics` answer. Engines of one data-parallel replica are added up."""
    # A line's start is then always a line feed followed by the name: found at memory speed.
    text = b"\n" + text
    usage = _series(text, b"vllm:kv_cache_usage_perc")
    if usage == []:
        usage = _series(text, b"vllm:gpu_cache_usage_perc")
    return Report(
        start_time=_start_time(_series(text, b"process_start_time_seconds")),
        running=_total(_series(text, b"vllm:num_requests_running")),
        waiting=_total(_series(text, b"vllm:num_requests_waiting")),
        kv_usage=_mean_share(usage),
        kv_capacity_tokens=_capacity(caches := _series(text, b"vllm:cache_config_info")),
        block_tokens=_block(caches),
    )


def _series(text: bytes, name: bytes) -> _Series | None:
    """Every series of a metric, once each. `None` if any is unreadable: a sum of the rest would lie."""
    found: dict[bytes, tuple[_Labels, bytes]] = {}
    needle = b"\n" + name
    at = text.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = text.find(b"\n", start)
        if text[start : start + 1] in (b"{", b" ", b"\t"):
            if end < 0 or end - start > _MAX_LINE or len(found) >= _MAX_SERIES:
                return None  # cut off in the middle of the line, perhaps of the number; or absurd
            parsed = _line(text[start:end])
            if parsed is None:
                return None
            key, labels, value = parsed
            found[key] = (labels, value)
        at = text.find(needle, start)
    return list(found.values())


def _line(rest: bytes) -> tuple[bytes, _Labels, bytes] | None:
    """What follows a metric's name: the labels as written, the labels, the value. `None` if unreadable."""
    labels: _Labels = {}
    at = 0
    if rest.startswith(b"{"):
        at = 1
        while (match := _LABEL.match(rest, at)) is not None:
            labels[match[1]] = match[2]
            at = match.end()
        while rest[at : at + 1] in (b" ", b"\t"):
            at += 1
        if rest[at : at + 1] != b"}":
            return None
        at += 1
    fields = rest[at:].split()
    if not 1 <= len(fields) <= 2:  # a time stamp may follow the value
        return None
    return rest[:at], labels, fields[0]


def _number(text: bytes, most: float) -> float | None:
    """A finite number in 0 … `most`; `None` otherwise."""
    if _NUMBER.fullmatch(text) is None:  # `float` would also take `nan`, `infinity` and `1_000`
        return None
    value = float(text)
    return value if math.isfinite(value) and 0 <= value <= most else None


def _numbers(series: _Series | None, most: float) -> list[float] | None:
    """The value of every series; `None` where there is none or any is no number."""
    if not series:
        return None
    values = []
    for _, text in series:
        value = _number(text, most)
        if value is None:
            return None
        values.append(value)
    return values


def _total(series: _Series | None) -> float | None:
    values = _numbers(series, _MAX_REQUESTS)
    return None if values is None else sum(values)


def _mean_share(series: _Series | None) -> float | None:
    """Engines of one replica are alike, so the share of all their blocks is the mean of their shares."""
    values = _numbers(series, 1.0)
    return None if values is None else sum(values) / len(values)


def _start_time(series: _Series | None) -> float | None:
    """Of several processes the youngest: its start is the latest loss of anything cached."""
    values = _numbers(series, _MAX_UNIX_S)
    return max(values) if values and min(values) > 0 else None


def _capacity(series: _Series | None) -> int | None:
    """Tokens that fit the KV cache of all engines."""
    if not series:
        return None
    tokens = 0
    for labels, _ in series:
        block = _count(labels.get(b"block_size"), _MAX_BLOCK_TOKENS)
        blocks = _count(labels.get(b"num_gpu_blocks"), _MAX_BLOCKS)
        if block is None or blocks is None:
            return None
        tokens += block * blocks
    return tokens


def _block(series: _Series | None) -> int | None:
    """Tokens of a block, where all engines have the same."""
    if not series:
        return None
    sizes = {_count(labels.get(b"block_size"), _MAX_BLOCK_TOKENS) for labels, _ in series}
    return sizes.pop() if len(sizes) == 1 else None


def _count(text: bytes | None, most: int) -> int | None:
    """A whole number in 1 … `most`; `None` otherwise. vLLM writes `None` until it has measured."""
    if text is None or _COUNT.fullmatch(text) is None:
        return None
    value = int(text)
    return value if 1 <= value <= most else None
