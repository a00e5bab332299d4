"""`homing explain`: asking a router, and the bill as a table."""

import json

import httpx
import pytest

from router.base.errors import HomingError
from router.explain import ask_admin, render, table

STRANGE = "and not as an admin port does: is it one?"
LINE = {
    "replica": "a",
    "cached_tokens": 120,
    "in_flight": 3,
    "pending_tokens": 0,
    "working_set_tokens": 5000,
    "capacity_tokens": None,
    "price": None,
    "over": None,
}
ANSWER = {
    "replica": "b",
    "kind": "spill",
    "reason": "home over a limit, next on the ring",
    "policy": "home",
    "prompt_tokens": 130,
    "segments": 4,
    "predicted_cached_tokens": 0,
    "session": "0123",
    "session_source": "x-session-id",
    "home": "a",
    "pull": None,
    "options": None,
    "candidates": [
        {**LINE, "over": "3 in flight, limit 3"},
        {**LINE, "replica": "b", "cached_tokens": 0, "capacity_tokens": 600000, "price": 12.5},
    ],
}


def test_the_bill_names_the_choice_marks_its_line_and_shows_what_is_unknown():
    first, second, blank, header, a, b = render(ANSWER).splitlines()
    assert not blank
    assert first == "b  spill: home over a limit, next on the ring  (policy home)"
    assert "130 tokens in 4 segments" in second
    assert second.endswith("session 0123 from x-session-id, home a")
    assert " ".join(header.split()) == "replica cached in flight pending working set capacity price over"
    assert a.split() == ["a", "120", "3", "0", "5000", "–", "–", "3", "in", "flight,", "limit", "3"]
    assert b.split() == ["→", "b", "0", "3", "0", "5000", "600000", "12.5"]


def test_large_figures_are_written_out():
    line = {**LINE, "capacity_tokens": 2_400_000, "price": 1_234_567.891}
    row = render({**ANSWER, "candidates": [line]}).splitlines()[-1].split()
    assert row[-2:] == ["2400000", "1234567.891"]


def test_the_priced_options_are_shown_term_by_term_with_the_one_that_was_taken_marked():
    terms = ("wait", "fetch", "compute", "crowd", "displacement", "move", "residue", "risk", "price")
    option = {"replica": "a", "way": "local", "source": None, "pulled_tokens": 0}
    option |= {f"{term}_ms": float(at) for at, term in enumerate(terms)}
    pulled = {**option, "replica": "b", "way": "pull", "source": "a", "pulled_tokens": 4096}
    local = {**option, "replica": "b"}
    shown = render({**ANSWER, "options": [option, local, pulled], "pull": {"source": "a", "tokens": 4096}})
    header, *rows = shown.splitlines()[-4:]
    assert header.split() == ["replica", "way", *terms]
    assert rows[0].split() == ["a", "local", *(f"{at}.0" for at in range(len(terms)))]
    assert rows[1].split()[:2] == ["b", "local"]
    assert rows[2].split()[:6] == ["→", "b", "pull", "4096", "from", "a"]


def test_a_turn_without_session_says_so():
    assert " derived from the conversation's opening" in render({**ANSWER, "session_source": "derived"})
    shown = render({**ANSWER, "session": None, "session_source": "", "home": None})
    assert shown.splitlines()[1].endswith("session none")


def test_a_turn_that_does_not_go_on_says_why():
    broken = {"why": "message 3 (tool) changed", "lost_tokens": 120}
    assert render({**ANSWER, "break": broken}).splitlines()[2] == (
        "does not go on from the turn before: message 3 (tool) changed (120 tokens lost)"
    )
    assert render({**ANSWER, "break": None}) == render(ANSWER)


def test_columns_are_as_wide_as_their_widest_cell_with_figures_to_the_right():
    assert table(("name", "n"), [("a", "10"), ("longer", "7")]) == "name     n\na       10\nlonger   7"


@pytest.fixture
def admin(monkeypatch):
    """What the admin port is asked, and what it will answer."""
    asked: list[tuple[str, bytes, dict[str, str]]] = []
    answers: list[httpx.Response | Exception] = []

    def post(url: str, *, content: bytes, headers: dict[str, str], timeout: float) -> httpx.Response:
        asked.append((url, content, headers))
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(httpx, "post", post)
    return asked, answers


def test_the_body_is_put_into_the_question_byte_for_byte(admin):
    asked, answers = admin
    answers.append(httpx.Response(200, json=ANSWER))
    body = b' {"model": "m",  "messages": []}\n'
    assert ask_admin("host:9090", body, path="/v1/x", session="s", tenant=None, token="t") == ANSWER
    ((url, content, headers),) = asked
    assert url == "http://host:9090/api/explain"
    assert b'"body":{"model": "m",  "messages": []}}' in content
    assert json.loads(content) == {"path": "/v1/x", "session": "s", "body": {"model": "m", "messages": []}}
    assert headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.ConnectError("refused"), "no answer from the admin port at http://h:1: refused"),
        (httpx.Response(200, text="<html>"), "http://h:1 answered 200 and no JSON: is it an admin port?"),
        (httpx.Response(409, json={"error": {"message": "no replica is well"}}), "no replica is well"),
        *[
            (httpx.Response(status, json=answer), f"http://h:1 answered {status}, {STRANGE}")
            for status, answer in (
                (200, []),
                (200, {}),
                (404, {"detail": "Not Found"}),
                (500, {"error": "x"}),
            )
        ],
    ],
)
def test_what_goes_wrong_is_said_in_words(answer, says, admin):
    admin[1].append(answer)
    with pytest.raises(HomingError) as error:
        ask_admin("http://h:1/", b"{}", path="/v1/x", session=None, tenant=None, token=None)
    assert str(error.value).replace("h:1/", "h:1") == says


def test_a_body_that_is_no_json_is_not_sent(admin):
    with pytest.raises(HomingError, match="the body is not JSON"):
        ask_admin("http://h:1", b"{", path="/v1/x", session=None, tenant=None, token=None)
    assert admin[0] == []
