"""What the router knows of a turn before it decides: values only.

`NamedTuple`, not a frozen dataclass: one of each is made for every request, and a tuple is built three
times faster.
"""

from typing import Final, NamedTuple

from router.base.ids import SessionKey, TenantId
from router.base.trace import Trace
from router.base.values import maker


class Chain(NamedTuple):
    """The prompt as a chain of segments. A hash stands for its segment and all that precede it.

    Two prompts share exactly the leading segments whose hashes are equal: a text that moved to another
    place has another hash.
    """

    hashes: tuple[int, ...]
    """64-bit hashes, root first. Tenant and model are part of the root, so no two of them ever meet."""
    ends: tuple[int, ...]
    """Prompt bytes up to and including each segment, cumulative. An image counts by what its tokens
    would be as text, not by the length of its encoding."""
    opening: int
    """How many leading segments make the conversation's opening (tools, system, first user message)."""
    system: int = 0
    """How many of those come before the first user message; 0 where there is none. They are what sessions
    share."""


make_chain: Final = maker(Chain)

EMPTY_CHAIN = Chain((), (), 0)
"""A request without a prompt."""


class Turn(NamedTuple):
    """One request, as far as routing is concerned."""

    path: str
    """The request path without its query, `/v1/chat/completions`."""
    model: str
    """As the client wrote it; "" where the request names none."""
    tenant: TenantId
    session: SessionKey | None
    """`None` where there is neither an id nor a prompt to derive one from."""
    session_source: str
    """Where the session came from: a header or body field by name, `derived`, or "" for none."""
    chain: Chain
    response_id: str | None = None
    """The stored response that this request refers to: it lives on one replica, a hard pin."""
    stream: bool = False
    computes: bool = True
    """Whether the replica prefills the prompt. False where it only counts or splits it: no KV stays there."""
    parent: SessionKey | None = None
    """The session that started this one, where the client says so; never another tenant's."""
    last: bool = False
    """The client says that this is its session's last turn."""
    pairs: bool = False
    """Its prompt may be computed by one replica and its answer by another."""
    returns: bool = False
    """What decode holds of the session's last turn may serve this one, as far as its body tells."""
    trace: Trace | None = None
    """Its place in a trace, for those who record; `None` where nobody does."""
    one_way: bool = False
    """Nothing will be known of what decode holds after this turn: its stream does not say."""


make_turn: Final = maker(Turn)
