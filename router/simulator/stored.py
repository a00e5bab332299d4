"""Responses that a simulated replica stores, to be read, gone on from, cancelled and deleted."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from router.simulator.prompts import Message
from router.simulator.refusals import Refusal

STORED_RESPONSES: Final = 10_000
"""Responses kept for `previous_response_id`; the oldest goes first."""


@dataclass(slots=True)
class Stored:
    """A response of `/v1/responses` that can be read and continued."""

    snapshot: dict[str, Any]
    messages: list[Message] = field(default_factory=list)
    """The conversation with the reply; empty while the reply is being made."""
    job_id: str | None = None
    """Its request in the engine, for a background response that is not done."""


class StoredResponses:
    """All of one life. `abort` is given the requests in the engine that are not wanted any more."""

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._stored: OrderedDict[str, Stored] = OrderedDict()

    def find(self, response_id: object) -> Stored:
        """The response of this id. Raises `Refusal` where there is none."""
        stored = self._stored.get(response_id) if isinstance(response_id, str) else None
        if stored is None:
            message = f"Response with id '{response_id}' not found."
            raise Refusal(404, message, kind="invalid_request_error", param="response_id")
        return stored

    def keep(self, stored: Stored) -> None:
        """Have it found by its id."""
        self._stored[stored.snapshot["id"]] = stored
        while len(self._stored) > STORED_RESPONSES:
            self._stored.popitem(last=False)

    def cancel(self, response_id: str) -> dict[str, Any]:
        """Stop one that is being made in the background; returns it. Raises `Refusal` for any other."""
        stored = self.find(response_id)
        if stored.job_id is None:
            raise Refusal(400, "Cannot cancel a synchronous response.", param="response_id")
        self._stop(stored)
        stored.snapshot |= {"status": "cancelled"}
        return stored.snapshot

    def delete(self, response_id: str) -> None:
        """Forget it. Raises `Refusal` where there is none."""
        self._stop(self.find(response_id))
        del self._stored[response_id]

    def _stop(self, stored: Stored) -> None:
        if stored.job_id is not None:
            self._abort(stored.job_id)
        stored.job_id = None
