"""Mooncake's format: which requests make a session, and every way to be wrong."""

import json

import msgspec
import pytest

from router.simulator.replay.mooncake import Request, decode, sessions


def request(at_ms: float, tokens: int, *ids: int, out: int = 50) -> Request:
    return decode(
        json.dumps(
            {"timestamp": at_ms, "input_length": tokens, "output_length": out, "hash_ids": ids}
        ).encode()
    )


def test_a_request_that_goes_on_from_another_is_its_sessions_next_turn():
    # The third id of the first is of a partial block, which is full and another one in the next prompt.
    (session,) = sessions([request(1000, 1100, 1, 2, 3), request(9000, 1600, 1, 2, 4, 5)])
    first, second = session.turns
    assert (first.kept, len(first.fresh), first.think_s) == (0, 2, 0.0)
    assert (second.kept, len(second.fresh), second.at_s) == (2, 1, 8.0)
    assert second.think_s == 7.0, "the gap of 8 s, less 50 tokens at 50 a second"


def test_a_gap_shorter_than_the_answer_leaves_no_time_to_think():
    (session,) = sessions([request(0, 512, 1, out=500), request(1000, 1024, 1, 2)])
    assert session.turns[1].think_s == 0.0


def test_a_session_is_continued_once_from_each_turn():
    first, fork = sessions([request(0, 1024, 1, 2), request(1, 1536, 1, 2, 3), request(2, 1536, 1, 2, 4)])
    assert (len(first.turns), len(fork.turns)) == (2, 1)
    assert fork.turns[0].kept == 0
    assert fork.turns[0].fresh[:2] == first.turns[0].fresh, "ids stand for the same tokens in all sessions"
    assert (first.id, fork.id) == ("s0", "s1")


def test_the_longest_beginning_wins():
    short, long = sessions(
        [request(0, 512, 1), request(1, 512, 1), request(2, 1024, 1, 2), request(3, 1536, 1, 2, 3)]
    )
    # The second request's prompt is as long as the first's, so it does not go on from it, and it is the
    # latest to end there; the third goes on from it, and the fourth from the third.
    assert [len(session.turns) for session in (short, long)] == [1, 3]


def test_a_prompt_of_less_than_a_block_is_a_session_by_itself():
    assert len(sessions([request(0, 100, 7), request(1, 100, 7)])) == 2


def test_requests_are_taken_in_the_order_of_their_time_and_begin_with_the_first():
    begun = sessions([request(5000, 512, 9), request(3000, 512, 8)])
    assert [session.at_s for session in begun] == [0.0, 2.0]
    assert sessions([]) == ()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 0), "input_length: must be at least 1"),
        ((-1, 512, 1), "must not be negative"),
        ((0, 1024, 1), "1 ids of 512 tokens do not make an input of 1024"),
        ((0, 512, 1, 2, 3), "3 ids"),
        ((0, 512, -1), "below 0"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        request(*arguments)


def test_a_line_that_is_no_request_is_refused():
    with pytest.raises(msgspec.ValidationError, match=r"missing required field `output_length`"):
        decode(b'{"timestamp": 1, "input_length": 5, "hash_ids": []}')
