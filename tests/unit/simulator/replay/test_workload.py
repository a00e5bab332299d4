"""Which sessions are played and when, and what their turns are once some are left out."""

import pytest

from router.simulator.replay.workload import Player, Selection, begin, choose

CONTEXT = 64_000


def prompts(script):
    return [step.prompt_tokens for step in script.steps]


def test_without_a_rate_sessions_begin_as_the_trace_says_the_first_of_them(make):
    trace = make.trace(*(make.session(f"s{n}", (100, 0, 1, 0.0), at=n * 5.0) for n in range(4)))
    workload = choose(trace, Selection(sessions=3, seed=9), CONTEXT)
    assert [at for at, _ in workload.starts] == [0.0, 5.0, 10.0]


def test_with_a_rate_sessions_are_drawn_and_begin_at_random_the_same_under_a_seed(make):
    trace = make.trace(*(make.session(f"s{n}", (100 + n, 0, 1, 0.0)) for n in range(300)))

    def at_seed(seed):
        starts = choose(trace, Selection(rate=2.0, sessions=200, seed=seed), CONTEXT).starts
        return [(at, prompts(script)) for at, script in starts]

    assert at_seed(1) == at_seed(1)
    assert at_seed(1) != at_seed(2)
    times = [at for at, _ in at_seed(1)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(100, rel=0.3)
    assert len({tokens for _, (tokens,) in at_seed(1)}) == 200


def test_keys_differ_from_seed_to_seed(make):
    trace = make.trace(make.session("s", (100, 0, 1, 0.0)))
    keys = {choose(trace, Selection(seed=seed), CONTEXT).starts[0][1].key for seed in (1, 2)}
    assert len(keys) == 2


def test_long_thoughts_are_cut(make):
    trace = make.trace(make.session("s", (100, 0, 1, 0.0), (200, 1, 1, 900.0), (300, 3, 1, 30.0)))
    ((_, script),) = choose(trace, Selection(think_cap_s=600), CONTEXT).starts
    assert [step.think_s for step in script.steps] == [0.0, 600.0, 30.0]


def test_a_prompt_that_no_replica_can_take_is_left_out_and_the_next_goes_on_from_the_one_before(make):
    session = make.session(
        "s", (640, 0, 1, 0.0), (2000, 8, 1, 1.0), (1280, 9, 1, 2.0), (1281, 20, 1, 3.0), (1279, 5, 1, 4.0)
    )
    workload = choose(make.trace(session), Selection(), 1281)
    ((_, script),) = workload.starts
    assert workload.left_out == 2
    assert prompts(script) == [640, 1280, 1279]
    # The third shares 9 blocks with the one left out, and that one 8 with the first.
    assert [step.kept for step in script.steps] == [0, 8, 5]
    assert script.steps[1].fresh == (*session.turns[1].fresh[:1], *session.turns[2].fresh)


def test_a_turn_answers_with_at_least_one_token_and_no_more_than_fit(make):
    trace = make.trace(make.session("s", (100, 0, 0, 0.0), (1000, 1, 500, 0.0)))
    ((_, script),) = choose(trace, Selection(), 1200).starts
    assert [step.output_tokens for step in script.steps] == [1, 200]


def test_the_blocks_of_an_answer_are_those_that_the_next_prompt_has_behind_the_prompt(make):
    session = make.session("s", (130, 0, 140, 0.0), (640, 2, 1, 0.0))
    ((_, script),) = choose(make.trace(session), Selection(), CONTEXT).starts
    # 130 + 140 tokens fill four blocks, of which the prompt filled two.
    assert script.steps[0].reply == session.turns[1].fresh[:2]
    assert script.steps[1].reply == ()


@pytest.mark.parametrize(
    "following",
    [(640, 1, 1, 0.0), (260, 2, 1, 0.0)],
    ids=["the history changed", "the next prompt is shorter than prompt and answer"],
)
def test_the_blocks_of_an_answer_have_no_name_where(following, make):
    session = make.session("s", (130, 0, 140, 0.0), following)
    ((_, script),) = choose(make.trace(session), Selection(), CONTEXT).starts
    assert script.steps[0].reply == ()


def test_sub_agents_are_not_counted_and_go_with_the_part_that_is_played(make):
    agents = [
        make.agent(at, after, make.session(f"s/{after}", *[(100, 0, 1, 0.0)] * 3))
        for at, after in ((3.0, 0), (130.0, 2), (950.0, 3))
    ]
    session = make.session("s", *[(100, 0, 1, 0.0)] * 3, agents=agents)
    ((_, script),) = choose(make.trace(session), Selection(max_turns=2), CONTEXT).starts
    assert len(script.steps) == 2
    assert [(after, delay) for after, delay, _ in script.agents] == [(0, 3.0), (2, 30.0)]
    assert all(len(agent.steps) == 3 and agent.beside for _, _, agent in script.agents)
    assert {agent.parent for _, _, agent in script.agents} == {script.key}
    assert script.parent is None


def test_a_sub_agent_of_a_turn_that_is_left_out_starts_from_the_one_before_within_the_cap(make):
    agent = make.agent(150.0, 2, make.session("s/a", (100, 0, 1, 0.0)))
    session = make.session("s", (100, 0, 1, 0.0), (5000, 1, 1, 0.0), agents=[agent])
    ((_, script),) = choose(make.trace(session), Selection(think_cap_s=60), 1000).starts
    assert [(after, delay) for after, delay, _ in script.agents] == [(1, 60.0)]


def test_a_player_goes_from_step_to_step(make):
    agents = [
        make.agent(3.0, 0, make.session("s/0", (100, 0, 1, 0.0))),
        make.agent(4.0, 1, make.session("s/1", (100, 0, 1, 0.0))),
    ]
    session = make.session("s", (200, 0, 1, 0.0), (200, 2, 1, 7.0), agents=agents)
    ((_, script),) = choose(make.trace(session), Selection(), CONTEXT).starts
    player, first_agent = begin(script, 50.0)
    assert (player.began, first_agent.began) == (50.0, 53.0)
    player.arrive(50.0)
    assert player.hashes == list(session.turns[0].fresh)
    assert [agent.began for agent in player.started()] == [54.0]
    assert player.answered(60.0) == 67.0
    player.arrive(67.0)
    assert player.hashes == [*session.turns[0].fresh[:2], *session.turns[1].fresh]
    assert list(player.started()) == []
    assert player.answered(70.0) is None


def test_a_session_without_a_turn_that_fits_still_starts_its_sub_agents(make):
    agent = make.agent(9.0, 1, make.session("s/a", (100, 0, 1, 0.0)))
    session = make.session("s", (5000, 0, 1, 0.0), agents=[agent])
    ((_, script),) = choose(make.trace(session), Selection(), 1000).starts
    (player,) = begin(script, 1.0)
    assert isinstance(player, Player)
    assert player.began == 10.0
