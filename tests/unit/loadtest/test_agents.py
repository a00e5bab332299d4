"""Agents for load tests: profiles, the sessions that they make, prompts that grow, answers that are read."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.agents.__main__ import main, prompts
from loadtest.agents.answers import Answer
from loadtest.agents.conversation import Conversation, words
from loadtest.agents.profile import Compaction, load_profile, shipped
from loadtest.agents.sessions import Planner, SessionPlan, Text, place
from router.base.errors import SettingsError
from router.simulator import tokens
from router.simulator.prompts import chat

ROOT = Path(__file__).parents[3]

KIND = """\
    system: {tokens: 40}
    opening: 30
    turns: 4
    answer: 8
    gap: 1s
"""


def profile_file(folder: Path, text: str) -> str:
    path = folder / "p.yaml"
    path.write_text(f"version: 1\nabout: of a test\nkinds:\n{text}")
    return str(path)


# --- profiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_profile_loads_and_makes_sessions(name: str) -> None:
    planner = Planner(load_profile(name), 0)
    assert all(planner.session(number).turns for number in range(50))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  a:\n    turn: 3\n" + KIND, "5: kinds.a: unknown key 'turn'; did you mean 'turns'?"),
        ("  a:\n" + KIND.replace("gap: 1s", "gap: 1"), "9: kinds.a.gap: '1' is not a duration"),
        (
            "  a:\n" + KIND.replace("turns: 4", "turns: {p50: 9, p90: 3, max: 20}"),
            "7: kinds.a.turns: p50, p90 and max must not fall: 9, 3, 20",
        ),
        ("  a:\n" + KIND + "    agents: {chance: 0.5, kind: b}\n", "kinds.a.agents.kind: no kind 'b'"),
        (
            "  a:\n" + KIND + "    agents: {chance: 0.5, kind: a}\n",
            "kinds.a.agents.kind: 'a' starts sub-agents of its own",
        ),
        ("  a:\n" + KIND + "    weight: 0\n", "kinds: at least one needs a weight above 0"),
        ("  a:\n" + KIND + "    leaves: 2\n", "10: kinds.a.leaves: "),
        (
            "  a:\n" + KIND + "stages: [{at: 0, users: 1}]\n",
            "stages and ends: neither goes without the other",
        ),
        (
            "  a:\n" + KIND + "stages: [{at: 5s, users: 1}, {at: 2s, users: 3}]\nends: 9s\n",
            "stages: each must begin after the one before it",
        ),
        (
            "  a:\n" + KIND + "stages: [{at: 5s, users: 1}]\nends: 4s\n",
            "ends: must lie behind the last stage",
        ),
    ],
)
def test_a_faulty_profile_is_refused_with_file_line_and_what_is_wrong(
    tmp_path: Path, text: str, said: str
) -> None:
    path = profile_file(tmp_path, text)
    with pytest.raises(SettingsError) as raised:
        load_profile(path)
    assert f"{path}:" in str(raised.value)
    assert said in str(raised.value)


def test_a_name_that_is_not_shipped_gets_the_nearest_that_is() -> None:
    with pytest.raises(SettingsError, match="no profile 'codin'; did you mean 'coding'"):
        load_profile("codin")


def test_the_locustfile_refuses_a_faulty_profile_before_anything_is_sent(tmp_path: Path) -> None:
    path = profile_file(tmp_path, "  a:\n    turn: 3\n" + KIND)
    done = subprocess.run(
        [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--headless", "--host", "http://x"],
        cwd=ROOT,
        env={"LOADTEST_PROFILE": path, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode != 0
    assert f"{path}:5: kinds.a: unknown key 'turn'; did you mean 'turns'?" in done.stderr


def test_the_shape_of_coding_sessions_is_that_of_real_ones() -> None:
    """The traces: 33 and 143 turns, prompts of 41k, 100k and 209k tokens, 700 tokens a turn, 10 s between."""
    profile = load_profile("coding")
    planner = Planner(profile, 0)
    plans = [planner.session(number) for number in range(300)]
    assert all(plan.kind == "coding" for plan in plans)

    def near(values: list[float], share: float, real: float) -> bool:
        return 0.7 * real <= sorted(values)[int(share * len(values))] <= 1.3 * real

    turns = [turn for plan in plans for turn in plan.turns[1:]]
    sizes = [float(size) for plan in plans for size in prompts(profile, plan)]
    assert near([float(len(plan.turns)) for plan in plans], 0.5, 33)
    assert near([float(len(plan.turns)) for plan in plans], 0.9, 143)
    assert near([float(turn.adds.tokens) for turn in turns], 0.5, 704)
    assert near([turn.gap_s for turn in turns], 0.5, 10)
    assert near([turn.gap_s for turn in turns], 0.9, 146)
    assert near(sizes, 0.1, 41_000)
    assert near(sizes, 0.5, 100_000)
    assert near(sizes, 0.9, 209_000)


def test_the_shape_of_a_profile_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mix", "--sessions", "30"]) == 0
    said = capsys.readouterr().out
    assert "single: turns a session" in said
    assert "agent: prompt tokens a turn" in said
    assert main(["codin"]) == 1


# --- sessions ---------------------------------------------------------------------------------------


def test_equal_seeds_make_equal_sessions_in_any_order_and_others_make_others() -> None:
    profile = load_profile("coding")
    one, two = Planner(profile, 3), Planner(profile, 3)
    ahead = [one.session(number) for number in range(5)]
    assert [two.session(number) for number in reversed(range(5))] == ahead[::-1]
    assert Planner(profile, 4).session(0) != ahead[0]
    assert len({plan.id for plan in ahead}) == 5


def test_sessions_share_system_prompts_and_openings_where_the_profile_says_so() -> None:
    planner = Planner(load_profile("flash-crowd"), 0)
    plans = [planner.session(number) for number in range(60)]
    crowd = [plan for plan in plans if plan.kind == "crowd"]
    others = [plan for plan in plans if plan.kind == "other"]
    assert len({plan.system for plan in crowd}) == len({plan.turns[0].adds for plan in crowd}) == 1
    assert len({plan.turns[1].adds for plan in crowd if len(plan.turns) > 1}) > 30
    assert len({plan.turns[0].adds for plan in others}) == len(others)
    assert {plan.system for plan in crowd}.isdisjoint({plan.system for plan in others})


def test_a_sub_agent_names_its_parent_and_has_no_turn_before_which_it_could_be_waited_for_in_vain() -> None:
    planner = Planner(load_profile("coding"), 0)
    plans = [planner.session(number) for number in range(80)]
    started = [(plan, turn.agent) for plan in plans for turn in plan.turns if turn.agent is not None]
    assert started
    assert all(agent.parent == plan.id and agent.kind == "explorer" for plan, agent in started)
    assert all(plan.turns[-1].agent is None for plan in plans)


def test_turns_count_by_their_place() -> None:
    assert [place(number) for number in (0, 1, 4, 5, 19, 20, 59, 60, 500)] == [
        "turn 1",
        "turns 2-5",
        "turns 2-5",
        "turns 6-20",
        "turns 6-20",
        "turns 21-60",
        "turns 21-60",
        "turns 61+",
        "turns 61+",
    ]


# --- conversations ----------------------------------------------------------------------------------


def plan_of(tmp_path: Path, text: str = "  a:\n" + KIND) -> SessionPlan:
    return Planner(load_profile(profile_file(tmp_path, text)), 0).session(0)


def rendered(body: bytes) -> bytes:
    return chat(orjson.loads(body)).tokens


def test_each_prompt_begins_with_the_one_before_and_its_answer(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    conversation = Conversation(plan, model="m", compaction=None)
    before = b""
    for turn in plan.turns:
        body = conversation.ask(turn)
        whole = rendered(body)
        assert whole.startswith(before)
        assert tokens.count(whole) == pytest.approx(conversation.tokens, abs=3)
        said = orjson.loads(body)
        assert (said["model"], said["stream"], said["max_tokens"]) == ("m", True, 8)
        conversation.answered('with "quotes" and\nlines')
        before = whole + tokens.encode('with "quotes" and\nlines')


def test_a_compaction_keeps_the_system_prompt_and_begins_anew_behind_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    conversation = Conversation(plan, model="m", compaction=Compaction(above=400, to=20), exact_answers=True)
    sizes, prompts_seen = [], []
    for turn in plan.turns:
        body = conversation.ask(turn)
        assert orjson.loads(body)["ignore_eos"] is True
        prompts_seen.append(rendered(body))
        sizes.append(conversation.tokens)
        conversation.answered("x" * 32)
    # 40 + 30, then 200 more a turn; the third would be above 400, and has 20 in place of what was said.
    assert sizes[0] < sizes[1] < 400
    assert sizes[1] - 40 < sizes[2] < sizes[1]
    system = 4 * (1 + 40)
    assert prompts_seen[2][:system] == prompts_seen[1][:system]
    assert not prompts_seen[2].startswith(prompts_seen[1][: system + 4 * 20])
    assert sizes[3] > 400 - 200


def test_a_session_that_is_met_half_way_has_a_prompt_as_long_as_one_that_was_played(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    played, met = (Conversation(plan, model="m", compaction=None) for _ in range(2))
    for turn in plan.turns[:2]:
        played.ask(turn)
        played.answered("abc " * turn.answer_tokens)
        met.pretend(turn)
    assert played.tokens == met.tokens


@given(st.integers(0, 2**62), st.integers(1, 300))
def test_a_text_has_a_word_for_each_token_and_equal_seeds_agree(seed: int, count: int) -> None:
    text = words(Text(seed, count))
    assert len(text.split()) == count
    assert tokens.count(tokens.encode(text.decode())) == count
    assert words(Text(seed, count)) == text


# --- answers ----------------------------------------------------------------------------------------


EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b": a comment\n\n"
    b'data: {"choices":[{"delta":{"content":"one "}}]}\n\n'
    b'data:{"choices":[{"delta":{"content":"two \xc3\xa9"}}]}\r\n\r\n'
    b'data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(EVENTS)), max_size=12))
def test_an_answer_reads_the_same_however_it_is_cut(cuts: list[int]) -> None:
    answer = Answer()
    edges = [0, *sorted(cuts), len(EVENTS)]
    for start, end in pairwise(edges):
        assert not answer.complete or start == end or start >= len(EVENTS) - 2
        answer.feed(EVENTS[start:end], float(end))
    assert answer.text == "one two é"
    assert len(answer.came_at) == 3
    assert len(answer.gaps_s) == 2
    assert min(answer.gaps_s) >= 0
    assert answer.complete
    assert (answer.prompt_tokens, answer.cached_tokens, answer.error) == (9, 4, None)


def test_an_error_event_is_told_and_is_no_end() -> None:
    answer = Answer()
    answer.feed(b'data: {"error": {"message": "gone"}}\n\n', 1.0)
    assert answer.error == '{"message":"gone"}'
    assert not answer.complete
    assert not answer.came_at


def test_what_is_no_event_is_an_error() -> None:
    with pytest.raises(ValueError, match="no object"):
        Answer().feed(b"data: 3\n\n", 1.0)
