"""Stored responses: which replica keeps them, and which turn of which session each one answers.

A bounded table of what was seen go by. The responses themselves lie on their replicas.
"""

from collections import OrderedDict
from typing import NamedTuple

from router.base.ids import ReplicaId, SessionKey, TenantId


class Stored(NamedTuple):
    """A response that a replica keeps, so that later turns can go on from it without sending it again."""

    replica: ReplicaId
    epoch: int
    """The life of that replica: in another, the response is gone."""
    session: SessionKey | None
    """The session of the turn that it answers."""
    tail: int
    """The last segment of that turn's chain; 0 for an empty one."""


class StoredResponses:
    """Responses by tenant and id. The one not told of for longest goes first."""

    __slots__ = ("_most", "_responses")

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._responses: OrderedDict[tuple[TenantId, str], Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    def find(self, tenant: TenantId, response_id: str) -> Stored | None:
        """What is known of a tenant's response; `None` if nothing."""
        return self._responses.get((tenant, response_id))

    def keep(self, tenant: TenantId, response_id: str, stored: Stored) -> None:
        """Remember a response. May be told again."""
        key = (tenant, response_id)
        self._responses[key] = stored
        self._responses.move_to_end(key)
        if len(self._responses) > self._most:
            self._responses.popitem(last=False)

    def forget(self, tenant: TenantId, response_id: str) -> None:
        """Drop a response, known or not."""
        self._responses.pop((tenant, response_id), None)
