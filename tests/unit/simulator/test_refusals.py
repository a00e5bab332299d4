"""Fields of a body are checked, and an error has the shape that its dialect has."""

import orjson
import pytest

from router.simulator.refusals import Refusal, error_answer, read_object, token_limit, whole_number


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        read_object(raw)
    assert (caught.value.status, caught.value.kind) == (400, "Bad Request")


@pytest.mark.parametrize("value", [-1, 1.5, "1", True])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    with pytest.raises(Refusal, match="count: a whole number"):
        whole_number({"count": value}, "count")


def test_an_absent_number_is_none() -> None:
    assert whole_number({}, "count") is None
    assert whole_number({"count": 0}, "count") == 0


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 4}, 4),
        ({"max_output_tokens": 3}, 3),
        ({"max_completion_tokens": None, "max_tokens": 2}, 2),
    ],
)
def test_the_limit_has_many_names(body: dict[str, object], limit: int | None) -> None:
    assert token_limit(body) == limit


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(Refusal, match="at least 1"):
        token_limit({"max_tokens": 0})


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"), (503, "api_error")],
)
def test_an_error_for_anthropic_clients(status: int, kind: str) -> None:
    answer = error_answer("/v1/messages", Refusal(status, "why"))
    assert answer.status == status
    assert isinstance(answer.body, bytes)
    assert orjson.loads(answer.body) == {"type": "error", "error": {"type": kind, "message": "why"}}


def test_an_error_for_everybody_else() -> None:
    answer = error_answer("/v1/completions", Refusal(404, "why", param="model"))
    assert isinstance(answer.body, bytes)
    error = {"message": "why", "type": "NotFoundError", "param": "model", "code": 404}
    assert orjson.loads(answer.body) == {"error": error}
