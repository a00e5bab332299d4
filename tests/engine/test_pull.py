"""One replica pulls what another computed: the same tokens, the same probabilities, little of the time."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from support.real_engines import BLOCK, Replica, fleet, text


@pytest.fixture(scope="module", params=["together", "apart"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Replica]]:
    """Replicas `a` and `b`; their schedulers and workers together or in processes of their own."""
    folder = tmp_path_factory.mktemp(request.param)
    with fleet(folder, "ab", apart=request.param == "apart") as replicas:
        yield replicas


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a file of the project",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
    for name in ("read", "write", "search")
]


def conversation(replica: Replica, chance: random.Random, turns: int) -> Iterator[list[dict[str, Any]]]:
    """The prompts of an agent's session, each a continuation of the one before.

    None is of whole blocks. The last block of one that is would be computed twice: by the replica that
    computes the prompt, as a part of all, and by the one that pulls it, alone, for the last token's sake.
    That is other arithmetic, whose last bits differ on some processors.
    """
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text(chance, 300)},
        {"role": "user", "content": text(chance, 200)},
    ]
    for turn in range(turns):
        while replica.count_tokens(messages, tools=TOOLS) % BLOCK == 0:
            messages[-1]["content"] += "."
        yield list(messages)
        call = {
            "id": f"call{turn}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"path": "file{turn}"}}'},
        }
        messages += [
            {"role": "assistant", "content": text(chance, 40), "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": f"call{turn}",
                "content": text(chance, chance.randrange(100, 500)),
            },
        ]


def pulled_as_computed(a: Replica, b: Replica, prompt: Any, **body: Any) -> float:
    """`b` pulls the prompt's KV from `a` and answers as `a` does from its own; the tokens that came so.

    The oracle is `a` with all full blocks of the prompt cached: both then compute the same rest from the same
    bytes, so that not one bit may differ.
    """
    a.ask(prompt, **body)
    oracle = a.ask(prompt, tokens=8, **body)
    before = b.metrics().loaded_tokens()
    answer = b.ask(prompt, tokens=8, sources=["a"], **body)
    assert answer.status == 200, answer.body
    assert answer.said == oracle.said
    full = (answer.prompt_tokens - 1) // BLOCK * BLOCK
    assert answer.cached == oracle.cached == full, b.metrics().about()
    return b.metrics().loaded_tokens() - before


def test_prompts_that_lie_elsewhere_are_pulled_whole(pair: dict[str, Replica]) -> None:
    chance = random.Random(1)
    for _ in range(20):
        prompt = text(chance, chance.randrange(200, 3000))
        loaded = pulled_as_computed(pair["a"], pair["b"], prompt)
        assert loaded == (len(prompt) - 1) // BLOCK * BLOCK


def test_every_turn_of_a_session_with_tools_can_move(pair: dict[str, Replica]) -> None:
    """Even turns live at `a`, odd ones at `b`, and the other one has older turns: local and pulled mix."""
    chance = random.Random(2)
    mixed = 0
    for _ in range(3):
        for turn, messages in enumerate(conversation(pair["a"], chance, 8)):
            home, other = (pair["a"], pair["b"]) if turn % 2 == 0 else (pair["b"], pair["a"])
            before = other.metrics().loaded_tokens()
            home.ask(messages, tools=TOOLS)
            oracle = home.ask(messages, tools=TOOLS, tokens=8)
            answer = other.ask(messages, tools=TOOLS, tokens=8, sources=[home.name])
            assert answer.said == oracle.said
            assert answer.cached == oracle.cached
            loaded = other.metrics().loaded_tokens() - before
            assert loaded > 0
            mixed += 0 < loaded < answer.cached
    assert mixed >= 12


def test_a_prefix_of_its_own_and_the_rest_pulled(pair: dict[str, Replica]) -> None:
    chance = random.Random(3)
    system = text(chance, 10 * BLOCK)
    # Both have it from one computation: two of prompts that go on differently may differ in the last bits.
    pair["a"].ask(system + "x")
    assert pair["b"].ask(system + "x", sources=["a"]).cached == len(system)
    for _ in range(10):
        prompt = system + text(chance, chance.randrange(200, 1500))
        loaded = pulled_as_computed(pair["a"], pair["b"], prompt)
        assert 0 < loaded == (len(prompt) - 1) // BLOCK * BLOCK - len(system)


def test_an_adjacent_prompt_is_another_prompt(pair: dict[str, Replica]) -> None:
    """One byte in the first block differs: nothing may be pulled, and the answer is a cold replica's."""
    chance = random.Random(4)
    prompt = text(chance, 1000)
    pair["a"].ask(prompt)
    before = pair["b"].metrics().loaded_tokens()
    other = "#" + prompt[1:]
    answer = pair["b"].ask(other, tokens=8, sources=["a"])
    assert answer.cached == 0
    assert pair["b"].metrics().loaded_tokens() == before
    pair["a"].forget_cache()
    assert pair["a"].ask(other, tokens=8, sources=[]).said[0] == answer.said[0]


def test_what_the_engine_forgot_comes_back_from_its_own_agent(pair: dict[str, Replica]) -> None:
    a = pair["a"]
    prompt = text(random.Random(5), 2000)
    a.ask(prompt)
    oracle = a.ask(prompt, tokens=8)
    a.forget_cache()
    before = a.metrics().loaded_tokens()
    answer = a.ask(prompt, tokens=8)
    assert answer.said == oracle.said
    assert a.metrics().loaded_tokens() - before == (len(prompt) - 1) // BLOCK * BLOCK


def test_a_request_that_wants_its_prompts_probabilities_is_computed(pair: dict[str, Replica]) -> None:
    prompt = text(random.Random(6), 500)
    pair["a"].ask(prompt)
    answer = pair["b"].ask(prompt, sources=["a"], echo=True)
    assert answer.status == 200
    assert answer.cached == 0


def test_several_answers_to_one_prompt(pair: dict[str, Replica]) -> None:
    prompt = text(random.Random(7), 1000)
    pair["a"].ask(prompt)
    before = pair["b"].metrics().loaded_tokens()
    answer = pair["b"].ask(prompt, tokens=4, sources=["a"], n=3, temperature=1, seed=1)
    assert answer.status == 200, answer.body
    assert len(answer.body["choices"]) == 3
    # Each is a request of its own to the engine, and the hint is the whole's: one of them may use it.
    assert pair["b"].metrics().loaded_tokens() - before >= 15 * BLOCK


def test_everything_is_given_back_and_counted(pair: dict[str, Replica]) -> None:
    for replica in pair.values():
        metrics = replica.await_idle()
        assert metrics.sum("vllm:homing_faults_total") == 0
        assert metrics.sum("vllm:homing_agent_connected") == 1
        assert metrics.sum("vllm:homing_loads_total", reason="done") > 10
        assert metrics.sum("vllm:homing_loaded_blocks_total") * BLOCK == metrics.loaded_tokens()
        assert "router/connector" not in replica.log.read_text(errors="replace"), "a traceback of ours"
