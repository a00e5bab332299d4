"""What the router knows of a turn before it decides: values only."""

from typing import Final

from router.base.ids import SessionKey, TenantId
from router.base.trace import Trace
from router.base.values import Value


class Chain(Value):
    """The prompt as a chain of segments. A hash stands for its segment and all that precede it.

    Two prompts share exactly the leading segments whose hashes are equal: a text that moved to another
    place has another hash.
    """

    __match_args__ = (
        "hashes",
        "ends",
        "opening",
        "system",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        hashes: tuple[int, ...],
        ends: tuple[int, ...],
        opening: int,
        system: int = 0,
    ) -> None:
        self.hashes: Final = hashes
        """64-bit hashes, root first. Tenant and model are part of the root, so no two of them ever meet."""
        self.ends: Final = ends
        """Prompt bytes up to and including each segment, cumulative. An image counts by what its tokens
        would be as text, not by the length of its encoding."""
        self.opening: Final = opening
        """How many leading segments make the conversation's opening (tools, system, first user message)."""
        self.system: Final = system
        """How many of those come before the first user message; 0 where there is none. They are what sessions
        share."""


EMPTY_CHAIN = Chain((), (), 0)
"""A request without a prompt."""


class Turn(Value):
    """One request, as far as routing is concerned."""

    __match_args__ = (
        "path",
        "model",
        "tenant",
        "session",
        "session_source",
        "chain",
        "response_id",
        "stream",
        "computes",
        "parent",
        "last",
        "pairs",
        "returns",
        "trace",
        "one_way",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        path: str,
        model: str,
        tenant: TenantId,
        session: SessionKey | None,
        session_source: str,
        chain: Chain,
        response_id: str | None = None,
        stream: bool = False,
        computes: bool = True,
        parent: SessionKey | None = None,
        last: bool = False,
        pairs: bool = False,
        returns: bool = False,
        trace: Trace | None = None,
        one_way: bool = False,
    ) -> None:
        self.path: Final = path
        """The request path without its query, `/v1/chat/completions`."""
        self.model: Final = model
        """As the client wrote it; "" where the request names none."""
        self.tenant: Final = tenant
        self.session: Final = session
        """`None` where there is neither an id nor a prompt to derive one from."""
        self.session_source: Final = session_source
        """Where the session came from: a header or body field by name, `derived`, or "" for none."""
        self.chain: Final = chain
        self.response_id: Final = response_id
        """The stored response that this request refers to: it lives on one replica, a hard pin."""
        self.stream: Final = stream
        self.computes: Final = computes
        """Whether the replica prefills the prompt. False where it only counts or splits it: no KV stays
        there."""
        self.parent: Final = parent
        """The session that started this one, where the client says so; never another tenant's."""
        self.last: Final = last
        """The client says that this is its session's last turn."""
        self.pairs: Final = pairs
        """Its prompt may be computed by one replica and its answer by another."""
        self.returns: Final = returns
        """What decode holds of the session's last turn may serve this one, as far as its body tells."""
        self.trace: Final = trace
        """Its place in a trace, for those who record; `None` where nobody does."""
        self.one_way: Final = one_way
        """Nothing will be known of what decode holds after this turn: its stream does not say."""

    @property
    def is_recorded(self) -> bool:
        """Whether there are spans of it."""
        return self.trace is not None and self.trace.sampled
