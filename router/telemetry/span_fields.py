"""What spans say of a turn, an attempt and a wait: names and attributes, from plain facts.

GenAI attributes have the names of OpenTelemetry's semantic conventions, those of HTTP and servers too; what
only this router knows is called `homing.*`. Never prompt text, nor anything else a client made up but the
model's name, cut short. `docs/tracing.md` describes each attribute, and a test holds the two together.
"""

from collections.abc import Callable
from functools import lru_cache
from heapq import nsmallest
from typing import Final
from urllib.parse import urlsplit

from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT, ReplicaId
from router.core.decide import Candidate, Decision
from router.core.observe import FAILURES, Ended, Outcome, Prefilled, Usage, WaitEnd
from router.core.price import lines, local_s
from router.core.request import Turn
from router.telemetry.otlp import Attributes, Key

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""What the conventions call an endpoint's work; the others are of HTTP only."""

_ROUTES: Final = frozenset(
    {
        *_OPERATIONS,
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/tokenize",
        "/detokenize",
    }
)
_RESPONSES: Final = "/v1/responses/"
_OTHER: Final = "/v1/*"

# vLLM is none of the conventions' well-known providers; they let others have a name of their own.
_PROVIDER: Final = "vllm"

_MOST_CHARS: Final = 128
"""Of the model's name."""

# The bill of hundreds of replicas is no reading. Chosen and home are always in it.
_CHEAPEST: Final = 4

_COMPLETED: Final = Outcome.COMPLETED
_FAILED_WAITS: Final = frozenset({WaitEnd.EXPIRED, WaitEnd.PUSHED_OUT, WaitEnd.NO_REPLICA})

_ERROR_TYPE: Final = Key("error.type")
_CONVERSATION: Final = Key("gen_ai.conversation.id")
_OPERATION: Final = Key("gen_ai.operation.name")
_PROVIDER_NAME: Final = Key("gen_ai.provider.name")
_MODEL: Final = Key("gen_ai.request.model")
_STREAM: Final = Key("gen_ai.request.stream")
_FIRST_CHUNK: Final = Key("gen_ai.response.time_to_first_chunk")
_CACHE_READ: Final = Key("gen_ai.usage.cache_read.input_tokens")
_INPUT: Final = Key("gen_ai.usage.input_tokens")
_OUTPUT: Final = Key("gen_ai.usage.output_tokens")
_METHOD: Final = Key("http.request.method")
_STATUS: Final = Key("http.response.status_code")
_ROUTE: Final = Key("http.route")
_ADDRESS: Final = Key("server.address")
_PORT: Final = Key("server.port")

_ATTEMPT: Final = Key("homing.attempt")
_ATTEMPTS: Final = Key("homing.attempts")
_BILL_PRICES: Final = Key("homing.bill.prices_ms")
_BILL_REPLICAS: Final = Key("homing.bill.replicas")
_BILL_WAYS: Final = Key("homing.bill.ways")
_CANDIDATES: Final = Key("homing.candidates")
_HOME: Final = Key("homing.home")
_KIND: Final = Key("homing.kind")
_OUTCOME: Final = Key("homing.outcome")
_POLICY: Final = Key("homing.policy")
_PREDICTED: Final = Key("homing.predicted.cached_tokens")
_ESTIMATED: Final = Key("homing.predicted.prompt_tokens")
_PRICE: Final = Key("homing.price")
_PULL_SOURCE: Final = Key("homing.pull.source")
_PULL_TOKENS: Final = Key("homing.pull.tokens")
_REASON: Final = Key("homing.reason")
_REPLICA: Final = Key("homing.replica")
_SESSION: Final = Key("homing.session")
_SESSION_SOURCE: Final = Key("homing.session.source")
_TENANT: Final = Key("homing.tenant")
_WAITED: Final = Key("homing.waited_ms")
_WAIT_END: Final = Key("homing.wait.end")
_PRICE_MS: Final = Key("homing.price.total_ms")
_WAIT_MS: Final = Key("homing.price.wait_ms")
_FETCH_MS: Final = Key("homing.price.fetch_ms")
_COMPUTE_MS: Final = Key("homing.price.compute_ms")
_CROWD_MS: Final = Key("homing.price.crowd_ms")
_DISPLACEMENT_MS: Final = Key("homing.price.displacement_ms")
_MOVE_MS: Final = Key("homing.price.move_ms")
_RESIDUE_MS: Final = Key("homing.price.residue_ms")
_RISK_MS: Final = Key("homing.price.risk_ms")


def route_of(path: str) -> str:
    """The endpoint, one of few: what else a path holds is the client's."""
    if path in _ROUTES:
        return path
    return _RESPONSES + "*" if path.startswith(_RESPONSES) else _OTHER


def attempt_name(turn: Turn) -> str:
    """What the span of an attempt is called."""
    operation = _OPERATIONS.get(turn.path)
    if operation is None:
        return route_of(turn.path)
    return f"{operation} {turn.model[:_MOST_CHARS]}" if turn.model else operation


def turn_fields(
    turn: Turn,
    *,
    method: str,
    status: int,
    refused: ErrorKind | None,
    decision: Decision | None,
    outcome: Outcome | None,
    tenant: Callable[[str], str],
) -> Attributes:
    """A turn as its client saw it. `decision` and `outcome` are the last attempt's; `None` where there was
    none, or where its end is not the turn's."""
    fields = Attributes()
    fields.text(_METHOD, method)
    fields.text(_ROUTE, route_of(turn.path))
    if status:
        fields.number(_STATUS, status)
    if refused is not None:
        fields.text(_ERROR_TYPE, refused._value_)
    elif has_failed(outcome):
        assert outcome is not None
        fields.text(_ERROR_TYPE, outcome._value_)
    if turn.session is not None:
        fields.text(_SESSION, turn.session)
        fields.text(_SESSION_SOURCE, turn.session_source)
    if turn.tenant != OPEN_TENANT:
        fields.text(_TENANT, tenant(turn.tenant))
    if decision is not None:
        fields.text(_KIND, decision.kind._value_)
        fields.text(_REPLICA, decision.replica)
        fields.number(_ATTEMPTS, decision.attempt + 1)
    return fields


def has_failed(outcome: Outcome | None) -> bool:
    """Whether an attempt's end was a failure."""
    # The enumeration's hash is slow, and this is how nearly all end.
    return outcome is not _COMPLETED and outcome in FAILURES


def turn_failed(status: int, refused: ErrorKind | None, outcome: Outcome | None) -> bool:
    """Whether the turn's span is marked as failed: for whatever is not the client's doing."""
    return status >= 500 or has_failed(outcome) or (refused is not None and status < 400)


def wait_fields(waited_s: float, end: WaitEnd) -> Attributes:
    """A turn's wait in the router."""
    fields = Attributes()
    fields.double(_WAITED, waited_s * 1000.0)
    fields.text(_WAIT_END, end._value_)
    if wait_failed(end):
        fields.text(_ERROR_TYPE, end._value_)
    return fields


def wait_failed(end: WaitEnd) -> bool:
    """Whether it was in vain, and not for the client's leaving."""
    return end in _FAILED_WAITS


def _add_end(fields: Attributes, outcome: Outcome, usage: Usage | None) -> None:
    """How it ended, and the tokens that the replica told."""
    if usage is not None:
        if usage.prompt_tokens is not None:
            fields.number(_INPUT, usage.prompt_tokens)
        if usage.completion_tokens is not None:
            fields.number(_OUTPUT, usage.completion_tokens)
        if usage.cached_tokens is not None:
            fields.number(_CACHE_READ, usage.cached_tokens)
    fields.text(_OUTCOME, outcome._value_)
    if has_failed(outcome):
        fields.text(_ERROR_TYPE, outcome._value_)


def attempt_fields(ended: Ended, url: str | None) -> Attributes:
    """One attempt: what was asked of the replica at `url`, why it was given the turn, and what came."""
    turn, decision, outcome = ended.turn, ended.decision, ended.outcome
    usage, ttft_s = ended.usage, ended.ttft_s
    fields = Attributes()
    operation = _OPERATIONS.get(turn.path)
    if operation is not None:
        fields.text(_OPERATION, operation)
        fields.text(_PROVIDER_NAME, _PROVIDER)
    if turn.model:
        fields.text(_MODEL, turn.model[:_MOST_CHARS])
    if turn.stream:
        fields.true(_STREAM)
    if turn.session is not None:
        fields.text(_CONVERSATION, turn.session)
    if url is not None:
        _add_place(fields, url)
    if ttft_s is not None:
        fields.double(_FIRST_CHUNK, ttft_s)
    _add_end(fields, outcome, usage)
    fields.text(_REPLICA, decision.replica)
    fields.text(_KIND, decision.kind._value_)
    fields.text(_REASON, decision.reason)
    fields.text(_POLICY, decision.policy)
    fields.number(_ATTEMPT, decision.attempt)
    fields.number(_CANDIDATES, len(decision.candidates))
    fields.number(_ESTIMATED, decision.prompt_tokens)
    fields.number(_PREDICTED, decision.cached_tokens)
    if decision.home is not None:
        fields.text(_HOME, decision.home)
    if decision.waited_s:
        fields.double(_WAITED, decision.waited_s * 1000.0)
    if decision.pull is not None:
        fields.text(_PULL_SOURCE, decision.pull.source)
        fields.number(_PULL_TOKENS, decision.pull.tokens)
    _add_bill(fields, decision)
    return fields


def prefill_name(turn: Turn) -> str:
    """What the span of a prompt in a prefill replica's hands is called."""
    return f"prefill {turn.model[:_MOST_CHARS]}" if turn.model else "prefill"


def prefill_fields(prefilled: Prefilled, url: str | None) -> Attributes:
    """A paired turn's prompt at the prefill replica at `url`. Without the conventions' operation: that is the
    attempt's, and whoever counts by it would count the turn twice."""
    turn, usage, outcome = prefilled.turn, prefilled.usage, prefilled.outcome
    fields = Attributes()
    if turn.model:
        fields.text(_MODEL, turn.model[:_MOST_CHARS])
    if url is not None:
        _add_place(fields, url)
    # What a prefill replica generates is one token, for nobody.
    _add_end(fields, outcome, usage.replace(completion_tokens=None) if usage is not None else None)
    fields.text(_REPLICA, prefilled.replica)
    fields.number(_ATTEMPT, prefilled.number)
    fields.number(_ESTIMATED, prefilled.prompt_tokens)
    fields.number(_PREDICTED, prefilled.cached_tokens)
    if prefilled.source is not None:
        fields.text(_PULL_SOURCE, prefilled.source)
    return fields


def _add_bill(fields: Attributes, decision: Decision) -> None:
    """What the chosen option is made of, and what the others would have cost."""
    if decision.price_list is None:
        if decision.prices is not None:
            at = next(at for at, one in enumerate(decision.candidates) if one.replica == decision.replica)
            fields.double(_PRICE, float(decision.prices[at]))
        return
    options = lines(
        _worth_showing(decision), decision.prompt_tokens, decision.home, decision.price_list, decision.pulls
    )
    way = "pull" if decision.pull is not None else "local"
    for option in options:
        if option.replica == decision.replica and option.way == way:
            fields.double(_PRICE_MS, option.price_ms)
            _add_term(fields, _WAIT_MS, option.wait_ms)
            _add_term(fields, _FETCH_MS, option.fetch_ms)
            _add_term(fields, _COMPUTE_MS, option.compute_ms)
            _add_term(fields, _CROWD_MS, option.crowd_ms)
            _add_term(fields, _DISPLACEMENT_MS, option.displacement_ms)
            _add_term(fields, _MOVE_MS, option.move_ms)
            _add_term(fields, _RESIDUE_MS, option.residue_ms)
            _add_term(fields, _RISK_MS, option.risk_ms)
    fields.texts(_BILL_REPLICAS, tuple([option.replica for option in options]))
    fields.texts(_BILL_WAYS, tuple([option.way for option in options]))
    fields.doubles(_BILL_PRICES, [option.price_ms for option in options])


def _add_term(fields: Attributes, key: Key, term: float) -> None:
    """Most terms are nothing most of the time."""
    if term:
        fields.double(key, term)


def _worth_showing(decision: Decision) -> tuple[Candidate, ...]:
    """The chosen candidate, the home, and the cheapest of all."""
    candidates, prices = decision.candidates, decision.price_list
    assert prices is not None
    if len(candidates) <= _CHEAPEST:
        return candidates
    cheapest = nsmallest(
        _CHEAPEST,
        candidates,
        key=lambda one: local_s(one, decision.prompt_tokens, prices, move=one.replica != decision.home),
    )
    kept = {one.replica for one in cheapest} | {decision.replica, decision.home or decision.replica}
    return tuple(one for one in candidates if one.replica in kept)


def _add_place(fields: Attributes, url: str) -> None:
    host, port = _place(url)
    fields.text(_ADDRESS, host)
    fields.number(_PORT, port)


@lru_cache(maxsize=1024)
def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


UrlOf = Callable[[ReplicaId], str | None]
"""Where a replica is; `None` for one that has left."""
