"""What spans say, from plain facts; `docs/tracing.md` has all of it."""

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes
from support.collector import plain

from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.decide import Candidate, Decision, Kind
from router.core.observe import Ended, Outcome, Usage, WaitEnd
from router.core.price import Prices, Pull, lines
from router.core.request import EMPTY_CHAIN, Turn
from router.telemetry import span_fields
from router.telemetry.otlp import Attributes, Key
from router.telemetry.span_fields import (
    attempt_fields,
    attempt_name,
    route_of,
    turn_failed,
    turn_fields,
    wait_failed,
    wait_fields,
)

DOC = Path(__file__).parents[3] / "docs" / "tracing.md"
CHAT = "/v1/chat/completions"
TURN = Turn(CHAT, "m", TenantId("acme"), SessionKey("k"), "x-session-id", EMPTY_CHAIN, stream=True)


def candidate(replica: str, *, cached: int = 0, wait_s: float = 0.0) -> Candidate:
    return Candidate(ReplicaId(replica), cached, 1, 20, 300, None, 0.0, 0.0, 7.0, None, wait_s=wait_s)


def decision(*candidates: Candidate, **more: object) -> Decision:
    given = candidates or (candidate("a", cached=500), candidate("b"))
    made = Decision(
        ReplicaId("a"), Kind.HOME, "home", "p", given, None, ReplicaId("a"), 1000, 500, 0, 5.0,
        price_list=Prices(),
    )  # fmt: skip
    return made.replace(**more)


def ended(made: Decision, outcome: Outcome = Outcome.COMPLETED, **more: object) -> Ended:
    return Ended(TURN, made, outcome, Usage(1000, 20, 480), 0.25, 1.0, 6.0).replace(**more)


def of(fields: Attributes) -> dict[str, Any]:
    written = Span.FromString(b"".join(fields.parts)).attributes
    found = {one.key: plain(one.value) for one in written}
    assert len(found) == len(written), "a key is there twice"
    return found


def of_turn(turn: Turn = TURN, **more: object) -> dict[str, Any]:
    given: dict[str, object] = {
        "method": "POST",
        "status": 200,
        "refused": None,
        "decision": decision(),
        "outcome": Outcome.COMPLETED,
    }
    return of(turn_fields(turn, tenant=lambda name: name[::-1], **{**given, **more}))  # type: ignore[arg-type]


def all_names() -> set[str]:
    return {value.name for value in vars(span_fields).values() if isinstance(value, Key)}


def test_the_document_describes_every_attribute_and_no_other() -> None:
    assert set(re.findall(r"^\| `([a-z_.]+)` \|", DOC.read_text(), re.MULTILINE)) == all_names()


def test_what_is_not_ours_is_called_as_the_conventions_have_it() -> None:
    known = {
        value
        for module in (gen_ai_attributes, error_attributes, http_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    # Newer than the oldest conventions that this is tested with.
    known |= {"gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"}
    known |= {"gen_ai.usage.cache_read.input_tokens"}
    assert {name for name in all_names() if not name.startswith("homing.")} <= known


@pytest.mark.parametrize(
    ("path", "route"),
    [
        (CHAT, CHAT),
        ("/tokenize", "/tokenize"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/responses/resp_1/cancel", "/v1/responses/*"),
        ("/v1/made/up/by-a-client", "/v1/*"),
    ],
)
def test_a_route_is_one_of_few(path, route):
    assert route_of(path) == route


@pytest.mark.parametrize(
    ("path", "model", "name"),
    [
        (CHAT, "m", "chat m"),
        ("/v1/messages", "m", "chat m"),
        ("/v1/completions", "", "text_completion"),
        ("/v1/embeddings", "x" * 200, "embeddings " + "x" * 128),
        ("/v1/score", "m", "/v1/score"),
    ],
)
def test_an_attempt_is_called_by_its_work_and_model(path, model, name):
    assert attempt_name(TURN.replace(path=path, model=model)) == name


def test_a_turn_says_what_its_client_saw() -> None:
    assert of_turn(decision=decision(attempt=1)) == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": 200,
        "homing.session": "k",
        "homing.session.source": "x-session-id",
        "homing.tenant": "emca",
        "homing.kind": "home",
        "homing.replica": "a",
        "homing.attempts": 2,
    }


def test_a_turn_without_replica_session_or_answer_says_less() -> None:
    bare = TURN.replace(tenant=OPEN_TENANT, session=None)
    assert of_turn(bare, status=0, decision=None, outcome=None) == {
        "http.request.method": "POST",
        "http.route": CHAT,
    }


@pytest.mark.parametrize(
    ("status", "refused", "outcome", "failed", "error"),
    [
        (200, None, Outcome.COMPLETED, False, None),
        (400, None, Outcome.CLIENT_ERROR, False, None),
        (429, ErrorKind.QUEUE_FULL, None, False, "queue_full"),
        (503, ErrorKind.NONE_HEALTHY, None, True, "none_healthy"),
        (500, None, Outcome.SERVER_ERROR, True, "server_error"),
        # An error event in a stream that had begun well.
        (200, ErrorKind.UPSTREAM_FAILED, Outcome.CUT, True, "upstream_failed"),
        (200, ErrorKind.STOPPING, Outcome.CANCELLED, True, "stopping"),
        (0, None, Outcome.CANCELLED, False, None),
    ],
)
def test_a_turn_has_failed_where_that_is_not_the_clients_doing(status, refused, outcome, failed, error):
    assert turn_failed(status, refused, outcome) is failed
    assert of_turn(status=status, refused=refused, outcome=outcome).get("error.type") == error


@pytest.mark.parametrize("end", list(WaitEnd))
def test_a_wait_says_how_it_ended(end):
    fields = of(wait_fields(1.5, end))
    vain = end not in (WaitEnd.DISPATCHED, WaitEnd.LEFT)
    assert wait_failed(end) is vain
    assert fields == {"homing.waited_ms": 1500.0, "homing.wait.end": end.value} | (
        {"error.type": end.value} if vain else {}
    )


def test_an_attempt_says_what_was_asked_why_it_went_there_and_what_came() -> None:
    fields = of(attempt_fields(ended(decision()), "https://gpu-1.example:8443"))
    bill = lines(decision().candidates, 1000, ReplicaId("a"), Prices(), None)
    terms = {
        name: fields.pop(name) for name in tuple(fields) if name.startswith(("homing.price.", "homing.bill."))
    }
    assert fields == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "k",
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 480,
        "server.address": "gpu-1.example",
        "server.port": 8443,
        "homing.outcome": "completed",
        "homing.replica": "a",
        "homing.kind": "home",
        "homing.reason": "home",
        "homing.policy": "p",
        "homing.attempt": 0,
        "homing.candidates": 2,
        "homing.predicted.prompt_tokens": 1000,
        "homing.predicted.cached_tokens": 500,
        "homing.home": "a",
    }
    assert terms.pop("homing.bill.replicas") == ["a", "b"]
    assert terms.pop("homing.bill.ways") == ["local", "local"]
    assert terms.pop("homing.bill.prices_ms") == [line.price_ms for line in bill]
    assert terms.pop("homing.price.total_ms") == bill[0].price_ms
    assert sum(terms.values()) == pytest.approx(bill[0].price_ms)
    assert terms["homing.price.compute_ms"] == bill[0].compute_ms


def test_what_a_replica_did_not_report_is_absent() -> None:
    spare = ended(decision(), usage=Usage(None, 3, None), ttft_s=None)
    fields = of(attempt_fields(spare, None))
    assert fields["gen_ai.usage.output_tokens"] == 3
    for name in ("input_tokens", "cache_read.input_tokens"):
        assert f"gen_ai.usage.{name}" not in fields
    assert "gen_ai.response.time_to_first_chunk" not in fields
    assert "server.address" not in fields
    assert not any("usage" in name for name in of(attempt_fields(spare.replace(usage=None), None)))


def test_a_plain_request_is_none_of_the_conventions_operations() -> None:
    bare = Turn("/v1/score", "", OPEN_TENANT, None, "", EMPTY_CHAIN)
    plain = ended(decision(home=None), turn=bare)
    fields = of(attempt_fields(plain, "http://10.0.0.1:8000"))
    assert [name for name in fields if name.startswith("gen_ai.") and "usage" not in name] == [
        "gen_ai.response.time_to_first_chunk"
    ]
    assert "homing.home" not in fields


def test_a_failed_attempt_names_the_error_and_the_wait_before_it() -> None:
    fields = of(attempt_fields(ended(decision(waited_s=0.5), Outcome.DIED), None))
    assert (fields["error.type"], fields["homing.outcome"]) == ("died", "died")
    assert fields["homing.waited_ms"] == 500.0
    assert "error.type" not in of(attempt_fields(ended(decision(), Outcome.CANCELLED), None))


def test_a_pull_is_named_and_priced() -> None:
    from router.core.decide import Pulls, Source

    pulls = Pulls(
        (Source(ReplicaId("a"), 900, 0, 0.9),), frozenset({ReplicaId("b")}), {}, {}, (0.01, 1e-9), 1000.0
    )
    pull = Pull(ReplicaId("a"), 900, 0.02, 2.0, 0.9)
    made = decision(
        candidate("a", cached=900, wait_s=9.0), candidate("b"),
        replica=ReplicaId("b"), kind=Kind.PULL, pull=pull, pulls=pulls,
    )  # fmt: skip
    fields = of(attempt_fields(ended(made), None))
    assert (fields["homing.pull.source"], fields["homing.pull.tokens"]) == ("a", 900)
    assert fields["homing.bill.replicas"] == ["a", "b", "b"]
    assert fields["homing.bill.ways"] == ["local", "local", "pull"]
    prices = fields["homing.bill.prices_ms"]
    # That of the way that was chosen, not of the same replica without the pull.
    assert fields["homing.price.total_ms"] == prices[2] != prices[1]


def test_the_bill_of_many_is_of_the_chosen_the_home_and_the_cheapest() -> None:
    many = [candidate(f"r{number}", wait_s=1.0 + number) for number in range(20)]
    made = decision(*many, replica=ReplicaId("r17"), home=ReplicaId("r15"))
    fields = of(attempt_fields(ended(made), None))
    assert fields["homing.bill.replicas"] == ["r0", "r1", "r2", "r3", "r15", "r17"]
    assert fields["homing.candidates"] == 20
    homeless = of(attempt_fields(ended(made.replace(home=None)), None))
    assert homeless["homing.bill.replicas"] == ["r0", "r1", "r2", "r3", "r17"]


def test_a_strategy_with_prices_of_its_own_has_one_figure_or_none() -> None:
    own = of(attempt_fields(ended(decision(price_list=None, prices=(3.0, 1.0))), None))
    assert own["homing.price"] == 3.0
    none = of(attempt_fields(ended(decision(price_list=None)), None))
    for fields in (own, none):
        assert not any(name.startswith(("homing.bill.", "homing.price.")) for name in fields)
    assert "homing.price" not in none


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://10.0.0.1:8000", ("10.0.0.1", 8000)),
        ("https://gpu-1.example", ("gpu-1.example", 443)),
        ("http://[::1]", ("::1", 80)),
    ],
)
def test_a_replica_is_told_by_address_and_port(url, place):
    fields = of(attempt_fields(ended(decision()), url))
    assert (fields["server.address"], fields["server.port"]) == place
