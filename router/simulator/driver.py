"""Drives an engine model in scaled real time on an event loop: one timer, whatever is in flight.

All tokens of a step come with one wake-up. Listeners are called from it and must not block.
"""

import asyncio
from typing import Protocol

from router.simulator.model import EngineModel, Finished, FirstToken, Job, Stats, Tokens


class Listener(Protocol):
    """Hears of one request."""

    def started(self, cached_tokens: int, ttft_s: float) -> None:
        """The first token is out. `ttft_s` is in simulated seconds."""
        ...

    def made(self, tokens: int) -> None:
        """So many further tokens are out."""
        ...

    def finished(self) -> None:
        """All tokens are out: the last call."""
        ...


class Driver:
    """One engine and its timer. Made and used on the loop's thread."""

    def __init__(self, model: EngineModel, *, time_scale: float = 1.0) -> None:
        """`time_scale` is simulated seconds a real second."""
        self.model = model
        self._scale = time_scale
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._listeners: dict[str, Listener] = {}
        self._timer: asyncio.Handle | None = None

    @property
    def time_scale(self) -> float:
        return self._scale

    def now(self) -> float:
        """Simulated seconds since the start."""
        return (self._loop.time() - self._origin) * self._scale

    def submit(self, job: Job, listener: Listener) -> None:
        """Queue a request. Raises `ValueError` as the model does."""
        self.model.submit(job, self.now())
        self._listeners[job.id] = listener
        self._set_timer()

    def abort(self, job_id: str) -> bool:
        """Drop a request: its listener hears nothing more. False where it has ended already."""
        if self._listeners.pop(job_id, None) is None:
            return False
        self.model.abort(job_id, self.now())
        self._set_timer()
        return True

    def arrived(self, job_id: str, missing: int) -> None:
        """What a request waited for from elsewhere is here, but for its last `missing` blocks."""
        self.model.arrived(job_id, missing, self.now())
        self._set_timer()

    def let_go(self, job_id: str) -> None:
        """Give back the blocks that were kept of a request that has finished."""
        self.model.let_go(job_id, self.now())
        self._set_timer()

    def go_at(self, time_scale: float) -> None:
        """From now on so many simulated seconds pass in a real one: fewer make the engine slower than others.

        Raises `ValueError` unless it is above 0."""
        if not time_scale > 0:
            raise ValueError(f"time_scale: must be above 0, not {time_scale}")
        self._origin = self._loop.time() - self.now() / time_scale
        self._scale = time_scale
        self._set_timer()

    def stats(self) -> Stats:
        return self.model.stats(self.now())

    def close(self) -> None:
        """Forget everything in flight."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._listeners.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.model.next_event_time()
        if self.model.has_news:
            # It was due, and the loop late: what is asked of the model meanwhile has brought it about.
            self._timer = self._loop.call_soon(self._wake)
        elif at is not None:
            self._timer = self._loop.call_at(self._origin + at / self._scale, self._wake)

    def _wake(self) -> None:
        self._timer = None
        listeners = self._listeners
        for event in self.model.advance(self.now()):
            listener = listeners.get(event.id)
            if listener is None:
                continue
            if isinstance(event, Tokens):
                listener.made(event.tokens)
            elif isinstance(event, FirstToken):
                listener.started(event.cached_tokens, event.ttft_s)
            elif isinstance(event, Finished):
                del listeners[event.id]
                listener.finished()
        self._set_timer()
