"""What workers tell one another: whose turn was answered where, and what is stored there.

So a session has one home, whichever worker gets its next turn. What is not told, or lost on the way, is
learned as other routers learn it: from the ring and from KV events.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from router.base.clock import Clock
from router.base.ids import ReplicaId, TenantId
from router.controlplane.link import Kind
from router.core.heard import HeardResponse, HeardTurn
from router.core.observe import FAILURES, NEUTRAL, Ended, Outcome
from router.core.observer import Silent
from router.core.stored import Stored

_log = logging.getLogger(__name__)

_MOST_SEGMENTS: Final = 32_768
"""Of a prompt: some 100 MB of it. A longer one is not told of."""

_TURN: Final = msgspec.msgpack.Decoder(HeardTurn)
_RESPONSE: Final = msgspec.msgpack.Decoder(HeardResponse)
_encode: Final = msgspec.msgpack.encode


class Hearing(Protocol):
    """The engine's part that is told of others' turns."""

    def start_time(self, replica: ReplicaId) -> float | None: ...

    def hear_turn(self, heard: HeardTurn, now: float) -> bool: ...

    def hear_response(self, heard: HeardResponse) -> bool: ...


class Hearsay(Silent):
    """Listens to an engine's turns and tells of them; takes in what it is told."""

    __slots__ = ("_clock", "_send", "heard", "hearing", "strange", "told")

    def __init__(self, clock: Clock) -> None:
        self.hearing: Hearing | None = None
        """To be set before the first turn."""
        self._clock = clock
        self._send: Callable[[Kind, bytes], None] | None = None
        self.told = 0
        self.heard = 0
        """Messages that were taken in."""
        self.strange = 0
        """Messages about replicas that are not known here, or in another life."""

    def set_listener(self, send: Callable[[Kind, bytes], None] | None) -> None:
        """Tell this one from now on; `None` = nobody."""
        self._send = send

    def on_ended(self, ended: Ended) -> None:
        if self._send is None or self.hearing is None:
            return
        turn, decision, usage = ended.turn, ended.decision, ended.usage
        chain = turn.chain
        if not _answered(ended) or not turn.computes or not chain.hashes:
            return
        if len(chain.hashes) > _MOST_SEGMENTS:
            return
        prompt = usage.prompt_tokens if usage is not None else None
        reply = usage.completion_tokens if usage is not None else None
        heard = HeardTurn(
            decision.replica,
            self.hearing.start_time(decision.replica),
            turn.tenant,
            turn.session,
            turn.session_source,
            turn.model,
            chain.hashes,
            chain.ends,
            prompt if prompt is not None else decision.prompt_tokens,
            reply or 0,
            turn.last,
        )
        self.told += 1
        self._send(Kind.TURN, _encode(heard))

    def stored(self, tenant: TenantId, response_id: str, stored: Stored) -> None:
        """A response is stored on a replica."""
        if self._send is None or self.hearing is None:
            return
        heard = HeardResponse(
            stored.replica,
            self.hearing.start_time(stored.replica),
            tenant,
            response_id,
            stored.session,
            stored.model,
            stored.tail,
        )
        self.told += 1
        self._send(Kind.RESPONSE, _encode(heard))

    def hear(self, kind: Kind, message: bytes) -> None:
        """Another worker says so."""
        assert self.hearing is not None
        try:
            if kind is Kind.TURN:
                known = self.hearing.hear_turn(_TURN.decode(message), self._clock.now())
            else:
                known = self.hearing.hear_response(_RESPONSE.decode(message))
        except msgspec.MsgspecError:
            _log.exception("a worker said what cannot be understood; it goes unheard")
            return
        self.heard += 1
        self.strange += not known


def _answered(ended: Ended) -> bool:
    """Whether the replica has the prompt in its cache: it had begun to answer."""
    if ended.outcome in FAILURES or ended.outcome is Outcome.CLIENT_ERROR:
        return False
    return ended.outcome not in NEUTRAL or ended.ttft_s is not None
