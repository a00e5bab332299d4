"""Reads a streamed answer: when its tokens came, what they say, and whether it came to its end."""

from typing import Final

import orjson

_PREFIX: Final = b"data:"


class Answer:
    """An answer to a streamed chat, as far as it has come. Fed with bytes, cut anywhere."""

    __slots__ = ("_rest", "_texts", "cached_tokens", "came_at", "complete", "error", "prompt_tokens")

    def __init__(self) -> None:
        self._rest = b""
        self._texts: list[str] = []
        self.came_at: list[float] = []
        """When each piece of content came, in the caller's seconds."""
        self.complete = False
        """Whether `[DONE]` was seen."""
        self.error: str | None = None
        """What an error event said."""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        """As reported; `None` where it was not."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def gaps_s(self) -> list[float]:
        """Between each piece and the one before."""
        return [after - before for before, after in zip(self.came_at, self.came_at[1:], strict=False)]

    def feed(self, data: bytes, now: float) -> None:
        """Take what came at `now`. Raises `ValueError` where an event is no JSON."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_PREFIX):
                self._event(line[len(_PREFIX) :].strip(), now)

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        event = orjson.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event that is no object")
        if "error" in event:
            self.error = orjson.dumps(event["error"]).decode()
            return
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content")
            if content:
                self._texts.append(content)
            # A model that thinks, or calls a tool, answers too.
            if content or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
                self.came_at.append(now)
        if usage := event.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
