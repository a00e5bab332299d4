"""Stands in for the reloader where a test is about something else, or about what is asked of it."""

from router.controlplane.reload import Outcome, Reload


class Reloads:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self, answer: Reload | None = None) -> None:
        self.answer = answer if answer is not None else Reload(Outcome.UNCHANGED, "nobody", 90.0)
        self.last: Reload | None = None
        self.asked: list[tuple[str, bytes | None]] = []

    async def reload(self, cause: str) -> Reload:
        return self._take(cause, None)

    async def put_policies(self, text: bytes, cause: str) -> Reload:
        return self._take(cause, text)

    def _take(self, cause: str, text: bytes | None) -> Reload:
        self.asked.append((cause, text))
        self.last = self.answer
        return self.answer
