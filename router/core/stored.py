"""Stored responses: which replica keeps them, and which turn of which session each one answers.

A bounded table of what was seen go by. The responses themselves lie on their replicas.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from router.base.ids import ReplicaId, SessionKey, TenantId


class Stored(NamedTuple):
    """A response that a replica keeps, so that later turns can go on from it without sending it again."""

    replica: ReplicaId
    epoch: int
    """The life of that replica: in another, the response is gone."""
    session: SessionKey | None
    """The session of the turn that it answers."""
    model: str
    """The model of that turn; "" where it named none."""
    tail: int
    """The last segment of that turn's chain; 0 for an empty one."""


_NOBODYS: Final[tuple[TenantId | None, Stored | None]] = (None, None)


class StoredResponses:
    """Responses by id, each its tenant's alone. The one not told of for longest goes first."""

    __slots__ = ("_most", "_responses")

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._responses: OrderedDict[str, tuple[TenantId, Stored]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._responses)

    def __iter__(self) -> Iterator[tuple[str, TenantId, Stored]]:
        """Each id with its tenant, the one not told of for longest first."""
        return ((response_id, *kept) for response_id, kept in self._responses.items())

    def find(self, tenant: TenantId, response_id: str) -> Stored | None:
        """What is known of a tenant's response; `None` if nothing."""
        owner, stored = self._responses.get(response_id, _NOBODYS)
        return stored if owner == tenant else None

    def keep(self, tenant: TenantId, response_id: str, stored: Stored) -> None:
        """Remember a response. May be told again.

        Nothing happens where it is known as another tenant's: an id that two have at once, whoever chose it,
        must not hand over a conversation.
        """
        if self._responses.get(response_id, (tenant, None))[0] != tenant:
            return
        self._responses[response_id] = (tenant, stored)
        self._responses.move_to_end(response_id)
        if len(self._responses) > self._most:
            self._responses.popitem(last=False)

    def forget(self, tenant: TenantId, response_id: str) -> None:
        """Drop a tenant's response, known or not."""
        if self.find(tenant, response_id) is not None:
            del self._responses[response_id]
