"""Turns that go on from a stored response: of which session they are, and where they have to go.

The responses themselves lie on their replicas: no other one can answer such a turn.
"""

from collections.abc import Callable, Sequence

from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, TenantId
from router.core.decide import Candidate, Choice
from router.core.members import Members
from router.core.request import Turn
from router.core.session import Session
from router.core.stored import Stored, StoredResponses
from router.core.ticket import Ticket


class Continuing:
    """What is known of stored responses, for the turns that refer to them.

    `on_stored` is told of each that a replica stores, and must not raise.
    """

    __slots__ = ("_members", "_on_stored", "_responses")

    def __init__(
        self,
        responses: StoredResponses,
        members: Members,
        on_stored: Callable[[TenantId, str, Stored], None] | None,
    ) -> None:
        self._responses = responses
        self._members = members
        self._on_stored = on_stored

    def stored(self, tenant: TenantId, response_id: str, ticket: Ticket) -> None:
        """A response with this id is stored on the ticket's replica. May be told again."""
        turn = ticket.turn
        tail = turn.chain.hashes[-1] if turn.chain.hashes else 0
        stored = Stored(ticket.decision.replica, ticket.epoch, turn.session, turn.model, tail)
        self._responses.keep(tenant, response_id, stored)
        if self._on_stored is not None:
            self._on_stored(tenant, response_id, stored)

    def resume(self, turn: Turn) -> tuple[Turn, str]:
        """The turn with its session, and the model that it is of.

        One that goes on from a stored response is of that response's session, unless it has an id of its own:
        it carries nothing else that a session could be derived from. One that only looks at a response names
        no model, so any replica may have it; it is of the response's all the same.
        """
        if turn.response_id is None:
            return turn, turn.model
        stored = self._find(turn)
        if stored is None:
            return turn, turn.model
        name = turn.model or stored.model
        if turn.session is not None and turn.session_source != "derived":
            return turn, name
        return turn.replace(session=stored.session), name

    # These two are asked of turns that have a `response_id`.

    def goes_on(self, turn: Turn, session: Session) -> bool:
        """Whether the response that the turn refers to is the answer to the session's last turn."""
        stored = self._find(turn)
        return stored is not None and stored.tail == session.tail

    def pinned(self, turn: Turn, candidates: Sequence[Candidate]) -> Choice | None:
        """The replica that stores the response that the turn refers to; `None` if nobody knows it.

        Raises `Refused` when it is known and cannot be reached, as no other replica has the response, and
        when it is not known to be the tenant's own.
        """
        pin = self._find(turn)
        if pin is None:
            if turn.tenant != OPEN_TENANT:
                # Replicas know no tenants: whoever has its id would be given another's conversation.
                raise Refused(
                    ErrorKind.NOT_FOUND,
                    f"no response {turn.response_id!r} of yours is known here; send the conversation in full",
                )
            return None
        replica = pin.replica
        member = self._members.get(replica)
        if member is None or member.epoch != pin.epoch:
            assert turn.response_id is not None
            self._responses.forget(turn.tenant, turn.response_id)
            raise Refused(
                ErrorKind.PINNED_GONE,
                f"response {turn.response_id!r} was stored on replica {replica}, which has since "
                f"{'left' if member is None else 'restarted'}; send the conversation in full instead",
            )
        for candidate in candidates:
            if candidate.replica == replica:
                return Choice(candidate, "holds the response")
        raise Refused(
            ErrorKind.PINNED_GONE,
            f"response {turn.response_id!r} is stored on replica {replica}, which {member.describe()}",
            retry_after_s=1.0,
        )

    def _find(self, turn: Turn) -> Stored | None:
        assert turn.response_id is not None
        return self._responses.find(turn.tenant, turn.response_id)
