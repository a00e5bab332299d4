"""Pairs in the data plane: a turn's prompt goes to a prefill replica, its answer comes from a decode replica.

What the one computed the other fetches, by parameters that go from answer to request. What decode then holds
of the turn, the session's next prefill fetches back: only as many leading tokens as the two prompts are known
to share, by the engines' own token ids, and only once. Whatever is in doubt is computed. Knows the exchange's
request and answer as bodies, and nothing of its client.
"""

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from router.base.ids import ReplicaId
from router.core.claims import Claim
from router.core.decide import Decision
from router.core.engine import Engine
from router.core.leg import Leg
from router.core.observe import Outcome, Usage
from router.core.pairbook import PairEnd, Unclaimed, Unreturned
from router.core.plan import PairRules
from router.core.ticket import Ticket
from router.core.token_ids import TokenIds
from router.dataplane.abridged import abridged
from router.dataplane.call import Call, CallError, Reply
from router.dataplane.pair_body import (
    PairBody,
    decode_parts,
    prefill_body,
    read_pair,
    rendered_ids,
    shown,
    told,
)
from router.dataplane.restream import restreamed
from router.dataplane.routing import Routed, closing
from router.dataplane.transfer import PREFILL, is_handed, offer_of, trimmed

if TYPE_CHECKING:
    from router.dataplane.server import DataPlane

_log = logging.getLogger(__name__)

# What a replica may take to say of which tokens a prompt is made: some 25 ms for 7,000 of them.
_RENDER_S: Final = 5.0

# What letting go of blocks may take, and how many replicas are asked to at once.
_RELEASE_S: Final = 10.0
_RELEASES: Final = 4


class Handoff:
    """What one exchange has to hand from its prefill replica to its decode replica."""

    __slots__ = (
        "asked",
        "body",
        "cached",
        "call",
        "failed",
        "ids",
        "leg",
        "legs",
        "outcomes",
        "params",
        "prefill",
        "rendered",
        "rendering",
        "told",
        "whole",
    )

    def __init__(self, body: PairBody, *, whole: bool) -> None:
        self.body = body
        self.whole = whole
        """Decode is asked for a whole answer, which is streamed from here."""
        self.asked = False
        """Of which tokens the prompt is made. Once is enough."""
        self.rendering: asyncio.Task[object] | None = None
        """Asks while the turn waits; `None` where it was not worth asking then."""
        self.told: bytes | None = None
        """What was answered; `None` where that was nothing."""
        self.rendered: TokenIds | None = None
        """The same, read; `None` where it is not known, or was not looked at."""
        self.leg: Leg | None = None
        """While a prefill replica has the prompt."""
        self.legs = 0
        """Prefill replicas that had the prompt, once more for each that had it again."""
        self.call: Call | None = None
        self.outcomes: tuple[Outcome, ...] = ()
        self.failed: tuple[ReplicaId, ...] = ()
        """Prefill replicas that failed this turn."""
        self.begin()

    @property
    def line(self) -> bytes:
        """What the answer's head says of who computed the prompt."""
        return b"" if self.prefill is None else f"x-homing-prefill: {self.prefill}\r\n".encode("latin-1")

    def close(self) -> None:
        """The turn is over."""
        if self.rendering is not None:
            self.rendering.cancel()

    def begin(self) -> None:
        """Nothing has been computed for the decode replica that the turn goes to."""
        self.params: bytes | None = None
        """By which decode fetches the prompt; `None` where it computes it."""
        self.ids: TokenIds | None = None
        """Of the prompt, as the prefill replica had it."""
        self.cached: int | None = None
        """Prompt tokens that nobody had to compute, as the prefill replica reported."""
        self.prefill: ReplicaId | None = None
        """Who computed the prompt."""


class PrefillError(Exception):
    """The prompt was computed by nobody, and the turn is not to be tried any further."""


class _Step(Enum):
    """How it goes on after one prefill replica's part."""

    OVER = 1
    """Not at all."""
    FAILED = 2
    """Another one has the prompt, or the same."""
    DECLINED = 3
    """It could not fetch, and computes."""


class Pairs:
    """Carries out what the engine decides of pairs. The data plane has one where some replica prefills."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self._engine: Engine = plane.engine
        self._distrusted: set[str] = set()
        """Models whose prompts two of their replicas make of different tokens: nothing is handed on."""
        self._told_in_streams: set[ReplicaId] = set()
        """Decode replicas whose streams say what they hold."""
        self._releasing = 0
        self.released: dict[bool, int] = {True: 0, False: 0}
        """Offers that were let go of at the replicas, by whether that succeeded."""

    # --- before -------------------------------------------------------------------------------------

    def prepare(self, routed: Routed) -> Handoff | None:
        """Look whether a request can be had by a pair, and say so in its turn."""
        turn = routed.turn
        if not turn.computes or not turn.chain.hashes or turn.model in self._distrusted:
            return None
        body = read_pair(routed.dialect, b"".join(routed.body))
        if body is None:
            return None
        rules = self._rules(routed)
        returns = body.comparable and turn.session is not None
        streams = turn.stream and returns and not self._told_in_streams
        whole = streams and rules.whole_streams and not turn.last
        one_way = turn.stream and not whole and not self._told_in_streams
        routed.turn = turn.replace(pairs=True, returns=returns, one_way=one_way)
        return Handoff(body, whole=whole)

    def render_ahead(self, handoff: Handoff, routed: Routed, decision: Decision) -> None:
        """The turn waits: ask meanwhile of which tokens its prompt is made, if that may be wanted."""
        pair = decision.pair
        if pair is not None and pair.pull is not None and not handoff.asked:
            handoff.asked = True
            handoff.rendering = self._plane.tasks.spawn(
                self._render(handoff, routed, pair.prefill), name=f"render at {pair.prefill}"
            )

    # --- prefill ------------------------------------------------------------------------------------

    async def prefill(self, handoff: Handoff, routed: Routed, ticket: Ticket, request_id: bytes) -> None:
        """Have the prompt computed by a prefill replica. Raises `PrefillError` where the turn is to end.

        Where no prefill replica could, `handoff.params` stays `None`, and decode computes it.
        """
        engine, plane = self._engine, self._plane
        handoff.begin()
        declined = False
        while True:
            leg = engine.legs.begin(ticket, plane.now(), plan=routed.plan, failed=handoff.failed)
            if leg is None:
                engine.pairs.ends[PairEnd.ALONE] += 1
                return
            leg.number = handoff.legs
            handoff.legs += 1
            handoff.leg = leg
            try:
                step = await self._step(leg, handoff, routed, request_id, declined=declined)
            finally:
                handoff.leg = None
                handoff.call = None
            if step is _Step.OVER:
                return
            declined = step is _Step.DECLINED

    async def _step(
        self, leg: Leg, handoff: Handoff, routed: Routed, request_id: bytes, *, declined: bool
    ) -> _Step:
        """One prefill replica's part, to its end. Raises `PrefillError`."""
        pairs = self._engine.pairs
        try:
            why = await self._prefill_at(leg, handoff, routed, request_id, declined=declined)
        except CallError as error:
            leg.end(error.outcome, self._plane.now())
            if leg.claim_used and error.outcome in (Outcome.SERVER_ERROR, Outcome.TIMEOUT):
                # It could not fetch. The same replica may well compute.
                pairs.unreturned[Unreturned.DECLINED] += 1
                return _Step.DECLINED
            self._failed(handoff, leg, routed, error)
            return _Step.DECLINED if declined else _Step.FAILED
        except asyncio.CancelledError:
            leg.end(Outcome.CANCELLED, self._plane.now())
            pairs.ends[PairEnd.CANCELLED] += 1
            raise
        if why:
            # What ails the request, decode will tell its client.
            pairs.ends[PairEnd.ALONE] += 1
        return _Step.OVER

    def _failed(self, handoff: Handoff, leg: Leg, routed: Routed, error: CallError) -> None:
        """Whether another prefill replica, or decode itself, may have the prompt. Raises `PrefillError`."""
        replica = leg.member.id
        handoff.outcomes += (error.outcome,)
        handoff.failed += (replica,)
        if error.outcome is Outcome.SHORTAGE:
            return
        if not self._engine.may_retry(handoff.outcomes, self._plane.now(), plan=routed.plan):
            self._engine.pairs.ends[PairEnd.FAILED] += 1
            raise PrefillError(f"prefill replica {replica} {error.why}")

    async def _prefill_at(
        self, leg: Leg, handoff: Handoff, routed: Routed, request_id: bytes, *, declined: bool
    ) -> str:
        """Ask one prefill replica. Returns why it did not compute; "" where it did. Raises `CallError`."""
        plane = self._plane
        assert routed.dialect is not None
        back = await self._back(leg, handoff, routed)
        ids = handoff.body.comparable
        body = prefill_body(
            routed.dialect, b"".join(routed.body), handoff.body.members, back or PREFILL, ids=ids
        )
        # Its engine refuses an id that it has; and another attempt's may not be over yet.
        own_id = b"%b-p%d" % (request_id, len(handoff.failed) + declined)
        trace = routed.turn.trace
        lines = trace.prefill_lines(leg.number) if trace is not None else b""
        reply = await self._ask(
            leg.member.id, handoff, routed, body, own_id, lines=lines, timeout_s=leg.patience_s
        )
        now = plane.now()
        if reply.status >= 500:
            raise CallError(Outcome.SERVER_ERROR, f"answered with status {reply.status}")
        if reply.status >= 400:
            leg.end(Outcome.CLIENT_ERROR, now)
            return f"answered with status {reply.status}"
        said = told(routed.dialect, abridged(reply.body))
        usage = said.usage
        if said.params is None or not is_handed(said.params):
            leg.end(Outcome.COMPLETED, now, usage)
            _log.warning(
                "prefill replica %s keeps nothing for decode: its --kv-transfer-config names no connector"
                " that does",
                leg.member.id,
            )
            return "keeps nothing"
        known = _ids(said.prompt_ids, handoff.rendered)
        if leg.claim_used and known != handoff.rendered:
            self._distrust(
                routed, f"replica {leg.member.id} renders a prompt in one way and computes another"
            )
            leg.end(Outcome.COMPLETED, now, usage)
            return "other tokens"
        leg.end(Outcome.COMPLETED, now, usage)
        handoff.params = said.params
        handoff.ids = known
        handoff.cached = usage.cached_tokens if usage is not None else None
        handoff.prefill = leg.member.id
        return ""

    async def _back(self, leg: Leg, handoff: Handoff, routed: Routed) -> bytes | None:
        """By what parameters the prompt's beginning is fetched back from decode; `None` = it is not."""
        claim = leg.claim
        if claim is None:
            self._engine.legs.nothing_back(leg)
            return None
        if handoff.rendering is not None:
            await asyncio.wait((handoff.rendering,))
        elif not handoff.asked:
            handoff.asked = True
            await self._render(handoff, routed, leg.member.id)
        if handoff.told is not None:
            # The last turn's tokens are what this prompt should begin with.
            handoff.rendered = TokenIds.read(handoff.told, claim.tokens)
            handoff.told = None
        tokens = self._engine.legs.fetch_back(leg, handoff.rendered, routed.plan)
        return trimmed(claim.offer, tokens, claim.block_tokens) if tokens else None

    async def _render(self, handoff: Handoff, routed: Routed, replica: ReplicaId) -> None:
        """Ask a replica of which tokens it makes the prompt."""
        path = routed.turn.path.encode("latin-1") + b"/render"
        parts = self._request(replica, routed, path, routed.body, None)
        if parts is None:
            return
        try:
            async with asyncio.timeout(_RENDER_S):
                reply = await Call(self._plane.limits.body).ask(self._plane.pools[replica], parts)
        except (CallError, TimeoutError):
            return
        handoff.told = rendered_ids(reply.body) if reply.status == 200 else None

    async def _ask(
        self,
        replica: ReplicaId,
        handoff: Handoff | None,
        routed: Routed,
        body: bytes,
        request_id: bytes,
        *,
        lines: bytes,
        timeout_s: float | None,
    ) -> Reply:
        path = routed.turn.path.encode("latin-1")
        parts = self._request(replica, routed, path, (body,), request_id, lines)
        if parts is None:
            raise CallError(Outcome.CONNECT_FAILED, "has left the fleet")
        call = Call(self._plane.limits.body)
        if handoff is not None:
            handoff.call = call
        try:
            async with asyncio.timeout(timeout_s):
                return await call.ask(self._plane.pools[replica], parts)
        except TimeoutError:
            raise CallError(Outcome.TIMEOUT, f"did not answer within {timeout_s:.1f} s") from None

    def _request(
        self,
        replica: ReplicaId,
        routed: Routed,
        path: bytes,
        body: tuple[bytes | memoryview, ...],
        request_id: bytes | None,
        lines: bytes = b"",
    ) -> tuple[bytes | memoryview, ...] | None:
        """A request with the client's headers, and these; `None` where the replica has left."""
        pool = self._plane.pools.get(replica)
        if pool is None:
            return None
        own = request_id if request_id is not None else self._plane.request_id(None)
        size = sum(map(len, body))
        head = b"".join((b"POST ", path, pool.head_suffix, routed.head_end, lines, closing(size, own)))
        return head, *body

    # --- decode -------------------------------------------------------------------------------------

    def decode_parts(
        self, handoff: Handoff, parts: tuple[bytes | memoryview, ...], ticket: Ticket
    ) -> tuple[bytes | memoryview, ...]:
        """The request for the decode replica."""
        assert handoff.params is not None
        whole = handoff.whole
        wanted = handoff.body.comparable and (whole or not ticket.turn.stream) and not handoff.body.asks_ids
        return decode_parts(parts, handoff.params, ids=wanted, whole=whole)

    def answered(
        self, handoff: Handoff, routed: Routed, ticket: Ticket, raw: bytes
    ) -> tuple[bytes, Usage | None, str | None]:
        """Take note of decode's whole answer. Returns what of it goes to the client, the usage of both
        replicas, and the id of the stored response (Responses only)."""
        brief = abridged(raw)
        said = told(routed.dialect, brief)
        if said.params is not None:
            reply = _ids(said.reply_ids)
            ids = handoff.ids + reply if handoff.ids is not None and reply is not None else None
            self._keep(handoff, routed, ticket, said.params, ids)
            self._compare(handoff, routed, ticket, said.prompt_ids)
        else:
            self._engine.pairs.unclaimed[Unclaimed.NOT_OFFERED] += 1
        answer = shown(brief, ids=handoff.body.asks_ids)
        if handoff.whole:
            assert routed.dialect is not None
            answer = restreamed(routed.dialect, answer, usage=not routed.hide_usage)
        return answer, self.usage(handoff, said.usage), said.response_id

    def streamed(self, handoff: Handoff, routed: Routed, ticket: Ticket, offer: bytes | None) -> None:
        """Take note of the end of decode's stream, and of what it said of the blocks that are kept."""
        if offer is None:
            self._engine.pairs.unclaimed[Unclaimed.STREAMED] += 1
            return
        self._told_in_streams.add(ticket.decision.replica)
        # What was generated is not known as tokens: the prompt's are enough for most of it.
        self._keep(handoff, routed, ticket, offer, handoff.ids)

    def usage(self, handoff: Handoff, usage: Usage | None) -> Usage | None:
        """Decode counts all that it fetched as cached. What nobody had to compute, prefill knows."""
        if usage is None or handoff.prefill is None:
            return usage
        return usage.replace(cached_tokens=handoff.cached)

    def _keep(
        self, handoff: Handoff, routed: Routed, ticket: Ticket, raw: bytes, ids: TokenIds | None
    ) -> None:
        """Enter what decode holds, for the session's next turn; or have it let go of."""
        legs = self._engine.legs
        block_tokens = legs.block_tokens(ticket.decision.replica)
        offer = offer_of(raw, block_tokens) if block_tokens is not None else None
        if block_tokens is None or offer is None:
            self._engine.pairs.unclaimed[Unclaimed.NOT_UNDERSTOOD] += 1
            return
        known = ids.first(offer.tokens) if ids is not None else None
        legs.keep(
            ticket,
            raw,
            known,
            block_tokens,
            offer.blocks * block_tokens,
            routed.plan,
            self._plane.now(),
            comparable=handoff.body.comparable,
        )

    def _compare(self, handoff: Handoff, routed: Routed, ticket: Ticket, prompt_ids: bytes | None) -> None:
        """Whether both replicas made the same tokens of the prompt. If not, the answer was wrong."""
        if handoff.ids is None or prompt_ids is None:
            return
        if TokenIds.read(prompt_ids, handoff.ids) != handoff.ids:
            pair = f"replicas {handoff.prefill} and {ticket.decision.replica}"
            self._distrust(routed, f"{pair} make different tokens of one prompt")

    def _distrust(self, routed: Routed, why: str) -> None:
        self._distrusted.add(routed.turn.model)
        _log.error(
            "no KV is handed from one replica to another for model %r any more, until this router restarts:"
            " %s; all replicas of a model need the same weights, tokenizer and chat template",
            routed.turn.model,
            why,
        )

    # --- afterwards ---------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Let go of what nobody will fetch, at the replicas that hold it."""
        self._engine.pairs.claims.expire(now)
        self._release_more(now)

    def _release_more(self, now: float) -> None:
        """As many at once as is proper. The others wait for these."""
        claims = self._engine.pairs.claims
        while self._releasing < _RELEASES:
            claim = claims.next_dropped(now)
            if claim is None:
                return
            prefill = self._engine.legs.release_by(claim.model)
            if prefill is not None:  # else the holder's own time ends it
                self._releasing += 1
                self._plane.tasks.spawn(self._release(claim, prefill), name=f"release at {claim.replica}")

    async def _release(self, claim: Claim, prefill: ReplicaId) -> None:
        done = False
        try:
            done = await self._let_go(claim, prefill)
        finally:
            self._releasing -= 1
            self.released[done] += 1
        self._release_more(self._plane.now())

    async def _let_go(self, claim: Claim, prefill: ReplicaId) -> bool:
        """Have a prefill replica compute one token and fetch nothing from there, which ends what is held.
        Whether it did."""
        pool = self._plane.pools.get(prefill)
        if pool is None:
            return False
        params = trimmed(claim.offer, 0, claim.block_tokens)
        body = b'{"model":%b,"prompt":[5],"max_tokens":1,"kv_transfer_params":%b}' % (
            msgspec.json.encode(claim.model),
            params,
        )
        head = b"".join(
            (
                b"POST /v1/completions",
                pool.head_suffix,
                b"content-type: application/json\r\n",
                closing(len(body), self._plane.request_id(None)),
            )
        )
        try:
            async with asyncio.timeout(_RELEASE_S):
                reply = await Call(self._plane.limits.body).ask(pool, (head, body))
        except (CallError, TimeoutError):
            return False
        return reply.status == 200

    def _rules(self, routed: Routed) -> PairRules:
        return self._engine.legs.rules(routed.plan)


def _ids(told: bytes | None, like: TokenIds | None = None) -> TokenIds | None:
    """Token ids that a replica told; `None` where it did not, or in no form that is known."""
    return TokenIds.read(told, like) if told is not None else None
