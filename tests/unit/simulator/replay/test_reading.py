"""Reading trace files: the format and the packing are told by content, faults by line."""

import gzip
import json
from pathlib import Path

import pytest
from support import small_trace

from router.base.errors import HomingError, SettingsError
from router.simulator.replay.reading import read_trace

SMALL = Path(__file__).parents[3] / "data" / "small-trace.jsonl"
SESSION = b'{"id": "%s", "requests": [{"in": 100, "lcp": 0, "new": [1, 1]}]}'
REQUEST = b'{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [4, 5]}'


@pytest.fixture
def write(tmp_path):
    def write_(content: bytes) -> Path:
        path = tmp_path / "trace.bin"
        path.write_bytes(content)
        return path

    return write_


def test_the_small_trace_is_what_its_maker_makes():
    assert SMALL.read_text().splitlines() == small_trace.lines()


def test_the_small_trace_has_all_that_a_trace_can_have():
    trace = read_trace(SMALL)
    assert (trace.block_tokens, trace.timed, trace.name) == (64, False, "small-trace.jsonl")
    assert len(trace.sessions) == 12
    assert any(session.agents for session in trace.sessions)
    turns = [turn for session in trace.sessions for turn in session.turns]
    assert any(turn.think_s > 600 for turn in turns)
    assert any(0 < turn.kept < 40 and len(turn.fresh) > 10 for turn in turns), "a compaction"


def test_a_packed_file_is_known_by_its_content(write):
    assert (
        read_trace(write(gzip.compress(SMALL.read_bytes(), mtime=0))).sessions == read_trace(SMALL).sessions
    )


def test_mooncakes_format_is_known_by_its_content(write):
    trace = read_trace(write(b"\n" + REQUEST + b"\n"))
    assert (trace.block_tokens, trace.timed) == (512, True)
    assert [len(session.turns) for session in trace.sessions] == [1]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b'{"messages": []}', ":1: neither a session (`requests`), nor a request of Mooncake's"),
        (b"\nno json", ":2: JSON is malformed"),
        (b"[1]", ":1: Expected `object`, got `array`"),
        (SESSION % b"a" + b"\n\n" + SESSION % b"\xff", ":3: Invalid"),
        (SESSION % b"a" + b"\n" + REQUEST, ":2: Object missing required field `id`"),
        (REQUEST + b"\n" + SESSION % b"a", ":2: Object missing required field"),
        (gzip.compress(REQUEST, mtime=0)[:-4], "damaged gzip file"),
        (gzip.compress(REQUEST, mtime=0)[:12] + b"\0\0\0\0", "damaged gzip file"),
    ],
)
def test_what_is_no_trace_is_refused_with_file_and_line(content, says, write):
    path = write(content)
    with pytest.raises(HomingError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}")
    assert says in str(caught.value)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(HomingError, match="No such file"):
        read_trace(tmp_path / "gone.jsonl")


def test_all_faulty_lines_are_told_at_once_up_to_twenty(write):
    bad = json.dumps({"id": "x", "requests": [{"in": 0}]}).encode()
    path = write(b"\n".join([SESSION % b"a", *[bad] * 25]))
    with pytest.raises(SettingsError) as caught:
        read_trace(path)
    assert len(caught.value.faults) == 21
    assert caught.value.faults[0].startswith(f"{path}:2: turn 0: in:")
    assert caught.value.faults[19].startswith(f"{path}:21: ")
    assert caught.value.faults[20] == "… and 5 more"


LINE = (
    b'{"homing":1,"at":5.0,"session":"a","model":"m","keep":0,"new":"00000000000000010000000000000002",'
    b'"sizes":[0,4000],"opening":2,"outcome":"completed","prompt_tokens":1000,"completion_tokens":5}\n'
)


def test_an_access_log_is_told_by_its_content_and_used_as_far_as_it_goes(write):
    trace = read_trace(write(gzip.compress(LINE + b'{"homing":1,"at":6.0,"se')))
    assert (trace.timed, trace.block_tokens) == (True, 64)
    [session] = trace.sessions
    assert (session.id, session.turns[0].prompt_tokens, len(session.turns[0].fresh)) == ("a/m", 1000, 15)
    assert trace.notes == ("1 line not used: not whole, or no line of an access log (the first is line 2)",)


def test_an_access_log_without_a_turn_that_can_be_replayed_says_why(write):
    path = write(LINE.replace(b'"completed"', b'"died"'))
    with pytest.raises(
        HomingError, match="no line of this access log can be replayed: 1 line not used: failed"
    ):
        read_trace(path)
    path = write(LINE.replace(b'"homing":1', b'"homing":9'))
    with pytest.raises(HomingError, match=r":1: format 9 of the access log"):
        read_trace(path)
