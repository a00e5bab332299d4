"""The format with one session a line: decoding, what sessions share, and every way to be wrong."""

import json

import msgspec
import pytest

from router.simulator.replay.shared import SessionReader


def turn(tokens: int, lcp: int, *new: int, **other: object) -> dict[str, object]:
    return {"t": 0, "in": tokens, "out": 5, "api": None, "think": None, "lcp": lcp, "new": new} | other


def line(*requests: dict[str, object], **fields: object) -> bytes:
    whole = {"id": "s", "block_tokens": 64, "tool_tokens": 0, "system_tokens": 0, "requests": requests}
    return json.dumps(whole | fields).encode()


def read(*lines: bytes):
    reader = SessionReader()
    for each in lines:
        reader.take(each)
    return reader.sessions


def test_turns_are_differences_to_the_turn_before():
    (session,) = read(
        line(
            turn(200, 0, 1, 3),
            turn(330, 3, 10, 2, think=4, out=None, t=9),
            turn(200, 2, 1, 1),
        )
    )
    first, second, third = session.turns
    assert (first.kept, len(first.fresh), first.think_s) == (0, 3, 0.0)
    assert (second.kept, len(second.fresh), second.think_s, second.output_tokens) == (3, 2, 4.0, 0)
    assert second.at_s == 9.0
    assert len({*first.fresh, *second.fresh}) == 5
    assert third.kept == 2
    assert third.fresh != first.fresh[:1], "the same id after another beginning is another block"


def test_the_same_ids_after_the_same_beginning_are_the_same_blocks():
    (session,) = read(line(turn(200, 0, 1, 3), turn(200, 0, 1, 3)))
    assert session.turns[0].fresh == session.turns[1].fresh


def test_ids_are_local_to_a_session():
    one, other = read(line(turn(200, 0, 1, 3), id="a"), line(turn(200, 0, 1, 3), id="b"))
    assert not {*one.turns[0].fresh} & {*other.turns[0].fresh}


def test_sessions_with_equal_tools_and_system_prompt_share_that_much():
    lengths = {"tool_tokens": 100, "system_tokens": 60}  # 2 full blocks
    one, two, else_ = read(
        line(turn(400, 0, 1, 6), id="a", **lengths),
        line(turn(400, 0, 50, 6), id="b", **lengths),
        line(turn(400, 0, 1, 6), id="c", tool_tokens=60, system_tokens=100),
    )
    a, b, c = (session.turns[0].fresh for session in (one, two, else_))
    assert one.lead_blocks == 2
    assert a[:2] == b[:2]
    assert not {*a[2:]} & {*b[2:]}
    assert not {*a} & {*c}, "equal in sum is not equal"


def test_what_is_not_the_sessions_own_lead_is_not_shared():
    lengths = {"tool_tokens": 128, "system_tokens": 64}
    one, two = read(
        line(turn(400, 0, 1, 6), turn(400, 1, 90, 5), turn(400, 1, 2, 5), id="a", **lengths),
        line(turn(400, 0, 1, 6), id="b", **lengths),
    )
    lead = two.turns[0].fresh[:3]
    assert one.turns[1].fresh[0] not in lead
    assert one.turns[2].fresh[:2] == lead[1:], "the lead is back"


def test_a_prompt_too_short_for_the_lead_does_not_say_what_the_lead_is():
    lengths = {"tool_tokens": 128, "system_tokens": 64}
    one, two = read(
        line(turn(64, 0, 70, 1), turn(400, 0, 1, 6), id="a", **lengths),
        line(turn(400, 0, 1, 6), id="b", **lengths),
    )
    assert one.turns[1].fresh[:3] == two.turns[0].fresh[:3]


def test_a_sub_agent_is_a_session_of_its_own_with_its_place_in_its_parent():
    agent = {
        "agent": {"t": 7.5, "agent_id": "x", "tool_tokens": 64, "system_tokens": 0},
        "requests": [turn(130, 0, 90, 2)],
    }
    (session,) = read(line(turn(200, 0, 1, 3), agent, turn(200, 3)))
    assert len(session.turns) == 2
    (started,) = session.agents
    assert (started.at_s, started.after, started.session.id) == (7.5, 1, "s/x")
    assert started.session.lead_blocks == 1
    assert [step.prompt_tokens for step in started.session.turns] == [130]


def test_a_sub_agent_may_go_on_from_its_parents_blocks():
    agent = {"agent": {"t": 1}, "requests": [turn(200, 0, 1, 3)]}
    (session,) = read(line(turn(200, 0, 1, 3), agent))
    assert session.agents[0].session.turns[0].fresh == session.turns[0].fresh


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (turn(200, 1, 1, 2), "turn 0: lcp: 1, and the turn before has 0 blocks"),
        (turn(200, -1, 1, 2), "lcp: -1"),
        (turn(0, 0), "in: must be from 1"),
        (turn(1 << 60, 0), "in: must be from 1"),
        ({"t": 0, "lcp": 0, "new": []}, "`in` is missing"),
        (turn(200, 0, 1), "pairs of a first id and a count"),
        (turn(200, 0, 1, 0), "pairs of a first id and a count"),
        (turn(200, 0, -1, 2), "pairs of a first id and a count"),
        (turn(200, 0, 1 << 63, 2), "above 2^62"),
        (turn(200, 0, 1, 4), "4 blocks of 64 tokens, but `in` is 200"),
        (turn(200, 0, 1, 3, blocks=2), "blocks: 2, but lcp and new make 3"),
        (turn(200, 0, 1, 3, think=-1), "turn 0: think: must not be negative"),
        (turn(200, 0, 1, 3, out=-1), "out: must not be negative"),
        (turn(200, 0, 1, 3, t=-1), "t: must not be negative"),
        ({"agent": {"t": 0}}, "requests[0]: a sub-agent has `requests`"),
        ({"agent": {"t": 0}, "requests": [turn(200, 1)]}, "requests[0], turn 0: lcp: 1"),
        ({"agent": {"t": -2}, "requests": []}, "requests[0].agent.t: must not be negative"),
        (
            {"agent": {"t": 0}, "requests": [{"agent": {}, "requests": []}]},
            "no sub-agents of its own",
        ),
    ],
)
def test_a_turn_that_contradicts_itself_is_refused_with_its_place(request_, says):
    with pytest.raises(ValueError, match=r".") as caught:
        read(line(request_))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"block_tokens": 0}, "block_tokens: must be at least 1, not 0"),
        ({"tool_tokens": -1}, "tool_tokens: must not be negative"),
        ({"id": 3}, "Expected `str`, got `int` - at `$.id`"),
        ({"requests": [{"in": "x"}]}, "at `$.requests[0].in`"),
    ],
)
def test_a_session_that_is_none_is_refused(fields, says):
    with pytest.raises((ValueError, msgspec.ValidationError)) as caught:
        read(line(**fields))
    assert says in str(caught.value)


def test_a_session_may_not_come_twice_nor_have_blocks_of_another_size():
    with pytest.raises(ValueError, match="a session 's' before"):
        read(line(), line())
    with pytest.raises(ValueError, match="block_tokens: 32, and 64 before"):
        read(line(), line(id="b", block_tokens=32))
