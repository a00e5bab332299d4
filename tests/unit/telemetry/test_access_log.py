"""What the access log says of each turn."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from router.base.errors import ErrorKind
from router.base.ids import SessionKey, TenantId
from router.core.decide import Decision
from router.core.observe import Ended, Outcome, Usage, WaitEnd
from router.core.request import Chain, Turn
from router.telemetry import access_log
from router.telemetry.access_log import AccessLog


class Lines:
    def __init__(self) -> None:
        self.begun = 1
        self.lines: list[dict[str, Any]] = []

    def write(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        assert b"\n" not in line[:-1]
        self.lines.append(json.loads(line))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def log(lines: Lines) -> AccessLog:
    return AccessLog(lines, secret=b"s", wall=lambda: 1000.0)


@pytest.fixture
def say(log: AccessLog, turn: Turn, decided: Callable[..., Decision], lines: Lines):
    def run(*hashes: int, session: str = "k", **more: Any) -> dict[str, Any]:
        chain = Chain(hashes, tuple(10 * (at + 1) for at in range(len(hashes))), min(1, len(hashes)))
        given = turn.replace(session=SessionKey(session), chain=chain, **more)
        log.on_ended(Ended(given, decided(), Outcome.COMPLETED, None, None, 1.0, 51.0))
        return lines.lines[-1]

    return run


def test_a_line_says_what_happened(
    log: AccessLog, lines: Lines, turn: Turn, decided: Callable[..., Decision]
) -> None:
    given = turn.replace(
        tenant=TenantId("acme"),
        stream=True,
        parent=SessionKey("p"),
        last=True,
        chain=Chain((5, 255), (30, 70), 1),
    )
    log.on_ended(Ended(given, decided(attempt=1), Outcome.COMPLETED, Usage(150, 9, 96), 0.25, 1.5, 51.5))
    [line] = lines.lines
    assert line == {
        "homing": 1,
        "at": 998.5,
        "session": "k",
        "source": "x-session-id",
        "path": "/v1/chat/completions",
        "model": "m",
        "stream": True,
        "tenant": line["tenant"],
        "parent": "p",
        "last": True,
        "policy": "home",
        "kind": "home",
        "replica": "a",
        "reason": "owner on the ring",
        "outcome": "completed",
        "prompt_tokens": 150,
        "completion_tokens": 9,
        "cached_tokens": 96,
        "estimated_prompt_tokens": 120,
        "predicted_cached_tokens": 100,
        "wait_ms": 0.0,
        "ttft_ms": 250.0,
        "duration_ms": 1500.0,
        "attempt": 1,
        "keep": 0,
        "new": "0000000000000005" + "00000000000000ff",
        "sizes": [30, 40],
        "opening": 1,
    }
    assert len(line["tenant"]) == 16
    assert "acme" not in json.dumps(line)


def test_only_what_is_new_of_a_prompt_is_written(say) -> None:
    assert say(1, 2, 3)["keep"] == 0
    line = say(1, 2, 3, 4)
    assert (line["keep"], line["after"], line["new"], line["sizes"]) == (3, f"{3:016x}", f"{4:016x}", [10])
    line = say(1, 2, 9)
    assert (line["keep"], line["after"], line["new"]) == (2, f"{2:016x}", f"{9:016x}")
    assert say(1, 2, 9)["new"] == ""
    assert say(7)["keep"] == 0


def test_sessions_and_models_have_chains_of_their_own(say) -> None:
    say(1, 2)
    assert say(1, 2, session="other")["keep"] == 0
    assert say(1, 2, model="other")["keep"] == 0
    assert say(1, 2)["keep"] == 2


def test_a_new_file_and_lost_lines_begin_with_whole_chains(say, lines: Lines) -> None:
    say(1, 2)
    lines.begun += 1
    assert say(1, 2, 3)["keep"] == 0
    assert say(1, 2, 3)["keep"] == 3


def test_what_is_remembered_is_bounded(say, log: AccessLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_MOST_SEGMENTS", 5)
    for name in "abc":
        say(1, 2, session=name)
    assert log._segments == 4
    assert say(1, 2, session="b")["keep"] == 2
    assert say(1, 2, session="a")["keep"] == 0
    say(*range(1, 20), session="long")
    assert say(*range(1, 20), session="long")["keep"] == 19
    assert log._segments == sum(len(known) for known in log._known.values()) == 19


def test_a_turn_that_goes_on_from_a_stored_response_leaves_the_sessions_chain_alone(say) -> None:
    say(1, 2)
    line = say(8, 9, response_id="resp_secret")
    assert (line["continued"], line["keep"]) == (True, 0)
    assert "resp_secret" not in json.dumps(line)
    assert say(1, 2, 3)["keep"] == 2


def test_a_path_that_names_a_response_does_not_tell_it(say) -> None:
    line = say(1, path="/v1/responses/resp_secret/cancel")
    assert line["path"] == "/v1/responses/*"


def test_a_turn_without_a_session_or_a_prompt_has_no_chain(
    log: AccessLog, lines: Lines, turn: Turn, decided: Callable[..., Decision]
) -> None:
    for given in (turn, turn.replace(session=None, chain=Chain((1,), (5,), 1))):
        log.on_ended(Ended(given, decided(), Outcome.CANCELLED, None, None, 1.0, 51.0))
        assert "keep" not in lines.lines[-1]
        assert lines.lines[-1]["outcome"] == "cancelled"


def test_a_turn_that_only_counts_says_so(say) -> None:
    assert say(1, computes=False)["computes"] is False


def test_a_refusal_is_a_line_without_the_words_of_it(log: AccessLog, lines: Lines, turn: Turn) -> None:
    log.on_refused(turn, ErrorKind.OVERLOADED, "every replica is full", 1.0)
    [line] = lines.lines
    assert (line["refused"], line["at"], line["session"]) == ("overloaded", 1000.0, "k")
    assert "every replica" not in json.dumps(line)


def test_a_turn_that_was_held_came_before_it_was_given_away(
    log: AccessLog, lines: Lines, turn: Turn, decided: Callable[..., Decision]
) -> None:
    log.on_waited(turn, 2.0, WaitEnd.DISPATCHED)
    decision = decided().replace(waited_s=2.0)
    log.on_ended(Ended(turn, decision, Outcome.COMPLETED, None, 0.5, 1.0, 51.0))
    [line] = lines.lines
    assert (line["at"], line["wait_ms"], line["ttft_ms"], line["duration_ms"]) == (
        997.0,
        2000.0,
        500.0,
        1000.0,
    )


def test_a_turn_that_leaves_the_queue_or_waits_in_vain_says_for_how_long(
    log: AccessLog, lines: Lines, turn: Turn
) -> None:
    log.on_waited(turn, 2.0, WaitEnd.LEFT)
    log.on_waited(turn, 3.0, WaitEnd.EXPIRED)
    log.on_refused(turn, ErrorKind.QUEUE_EXPIRED, "", 1.0)
    log.on_refused(turn, ErrorKind.OVERLOADED, "", 1.0)
    left, expired, refused = lines.lines
    assert (left["at"], left["outcome"], left["wait_ms"]) == (998.0, "left", 2000.0)
    assert (expired["at"], expired["refused"], expired["wait_ms"]) == (997.0, "queue_expired", 3000.0)
    assert (refused["at"], "wait_ms" in refused) == (1000.0, False)
