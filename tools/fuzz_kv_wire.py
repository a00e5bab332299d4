"""Fuzzes the decoder of KV frames and messages: `pip install atheris`, then `python tools/fuzz_kv_wire.py`.

Anything but a `WireFault` is a finding. Takes libFuzzer's arguments, `-max_total_time=60` for a minute. The
same properties run in the test suite under Hypothesis, without atheris.
"""

import sys
from contextlib import suppress

import atheris

with atheris.instrument_imports():
    from router.kv import messages as m
    from router.kv.checksum import checksum
    from router.kv.wire import Decoder, WireFault, encode


def one_input(data: bytes) -> None:
    """Bytes as they come from a stranger, and as metadata of a frame that is otherwise in order."""
    for total in (checksum, None):
        decoder = Decoder(m.MAX_META_UNKNOWN, total)
        with suppress(WireFault):
            for frame in decoder.feed(data):
                m.read(frame.type, frame.meta)
    if data:
        kind = sorted(m.SHAPES)[data[0] % len(m.SHAPES)]
        with suppress(WireFault):
            for frame in Decoder(len(data), checksum).feed(encode(kind, 1, data[1:], checksum=checksum)):
                m.read(frame.type, frame.meta)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
