"""What one replica computed and pushed, another pulls from the gateway: the same tokens and probabilities."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.real_engines import BLOCK, GatewayProcess, Replica, fleet, text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[GatewayProcess]:
    made = GatewayProcess("pool", folder)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def pair(folder: Path, pool: GatewayProcess) -> Iterator[dict[str, Replica]]:
    """Replicas `a` and `b`, whose agents know the pool alone."""
    with fleet(folder, "ab", pool=pool) as replicas:
        yield replicas


def test_prompts_that_were_pushed_are_pulled_whole(pair: dict[str, Replica], pool: GatewayProcess) -> None:
    chance = random.Random(21)
    for _ in range(5):
        prompt = text(chance, chance.randrange(200, 3000))
        held = pool.blocks()
        pair["a"].ask(prompt)
        pool.await_blocks(held + len(prompt) // BLOCK)
        oracle = pair["a"].ask(prompt, tokens=8)
        before = pair["b"].metrics().loaded_tokens()
        answer = pair["b"].ask(prompt, tokens=8, sources=["pool"])
        assert answer.said == oracle.said
        full = (len(prompt) - 1) // BLOCK * BLOCK
        assert answer.cached == full
        assert pair["b"].metrics().loaded_tokens() - before == full


def test_a_gateway_that_is_gone_costs_nothing_but_the_pull(
    pair: dict[str, Replica], pool: GatewayProcess
) -> None:
    prompt = text(random.Random(22), 1000)
    oracle = pair["a"].ask(prompt, tokens=8).said[0]
    pool.kill()
    answer = pair["b"].ask(prompt, tokens=8, sources=["pool"])
    assert (answer.said[0], answer.cached) == (oracle, 0)
    pool.start()
