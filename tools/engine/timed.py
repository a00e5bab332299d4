"""`HomingConnector` with a clock in every call that the engine makes: what of a step is its doing.

Loaded by engines that `make engine-bench` starts, with their Python. Both of the connector's sides are in one
process there; they add to one account, which goes to the file that HOMING_TIMES names when a request ends.
"""

import functools
import inspect
import json
import os
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from router.connector import HomingConnector

PLACE: Final = Path(os.environ["HOMING_TIMES"])

_spent: dict[str, list[float]] = {}
_depth = 0


def _timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        global _depth
        if _depth:  # one of its methods calls another
            return method(*args, **kwargs)
        _depth = 1
        wall, processor = time.perf_counter(), time.thread_time()
        try:
            return method(*args, **kwargs)
        finally:
            _depth = 0
            account = _spent.setdefault(name, [0.0, 0.0, 0.0])
            for at, more in enumerate((1.0, time.perf_counter() - wall, time.thread_time() - processor)):
                account[at] += more
            if name.startswith("request_finished"):
                told = PLACE.with_suffix(".new")
                told.write_text(json.dumps(_spent))
                told.rename(PLACE)

    return timed


class TimedConnector(HomingConnector):  # type: ignore[misc]  # without vLLM's stubs its base is Any
    """The same, and its time is written down: calls, seconds, and seconds of the processor, by method."""


for _name in dir(HomingConnector):
    _method = inspect.getattr_static(HomingConnector, _name)
    # Its own and those that it inherits: the engine pays for either.
    if isinstance(_method, types.FunctionType) and not _name.startswith("__"):
        setattr(TimedConnector, _name, _timed(_name, _method))
