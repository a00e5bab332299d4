"""Where what of a session lies, as far as replicas' own events and KV agents say.

Not what is believed: that is the prefix index's.
"""

from collections.abc import Iterable

from router.base.ids import ReplicaId, SessionKey
from router.core.fleet import Resident
from router.core.holdings import Holdings
from router.core.member import Member
from router.core.session import OWN_DIGITS


def residents(session: SessionKey, members: Iterable[Member]) -> dict[ReplicaId, int]:
    """Tokens of a session by replica, for those whose events say so."""
    found = {}
    for member in members:
        if member.residency is not None:
            tokens = member.residency.tokens(session)
            if tokens is not None:
                found[member.id] = tokens
    return found


def whereabouts(key: SessionKey, members: Iterable[Member], holdings: Holdings | None) -> list[Resident]:
    """All that is said of a session, the most first. By its own key, or by that of one of its models."""
    own = SessionKey(key[:OWN_DIGITS])
    members = tuple(members)
    found = [Resident(replica, tokens, "events") for replica, tokens in residents(own, members).items()]
    if holdings is not None:
        for place in (*(member.id for member in members), *holdings.pools):
            tokens = holdings.tokens(place, own)
            if tokens:
                found.append(Resident(place, tokens, "agent"))
    return sorted(found, key=lambda each: (-each.tokens, each.place))
