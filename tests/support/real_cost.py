"""What an engine pays for the connector while nobody has anything for it to pull.

    make engine-bench PART=cost

An engine with the connector and its agent is asked twice in each round, in an order that changes, once so
that the connector leaves the request alone: one process, so that nothing else differs. `beside`: with it are
two engines without any connector, which are alike. They tell what there may be more, and what two engines
that do not differ seem to differ by on this machine: what a process happens to get of memory stays with it,
so a run of fresh engines is a sample of its own. With a file to keep rounds in, runs add up, and an interval
is over both: runs are drawn, and rounds of each.
"""

import concurrent.futures
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, Final

from support.real_engines import ARENA_MIB, AgentProcess, Plan, Replica, engines, make_model, roomy, text

LENGTH: Final = 7000
"""Tokens of the prompt whose first token is waited for."""
AT_ONCE: Final = 8
AT_ONCE_LENGTH: Final = 1000
ANSWER: Final = 32
"""Tokens of each of the answers that are generated at once."""

WITH, ALONE, WITHOUT, AGAIN = "with", "alone", "without", "again"
LEFT_ALONE: Final = {"kv_transfer_params": {"homing-bench": "alone"}}
"""As `tools/engine/bypassed.py` has it."""
COMPARED: Final = (
    (WITH, ALONE, "with the connector / left alone by it, same engine"),
    (WITH, WITHOUT, "with the connector / engine without"),
    (AGAIN, WITHOUT, "another engine without / engine without"),
)
FIRST, MANY = "first", "many"
TITLES: Final = {
    FIRST: f"first token, prompts of {LENGTH:,} tokens",
    MANY: f"{AT_ONCE} answers of {ANSWER} tokens at once, prompts of {AT_ONCE_LENGTH:,}",
}

Ask = Callable[[Replica, random.Random, Mapping[str, Any]], float]
Round = dict[str, Any]
"""`run`, `what`, and by arm `wall` and `processor` seconds; `agent`: processor seconds of the agent."""


@dataclass(frozen=True, kw_only=True)
class BypassedPlan(Plan):
    """An engine whose connector leaves some requests alone."""

    def transfer_config(self, folder: Path) -> dict[str, Any]:
        other = {"kv_connector": "BypassedConnector", "kv_connector_module_path": "tools.engine.bypassed"}
        return super().transfer_config(folder) | other


def measure(
    folder: Path, rounds: int, *, apart: bool, beside: bool, only: str | None, keep: Path | None
) -> None:
    """One run, and what all that are kept come to."""
    kept: list[Round] = []
    if keep is not None and keep.exists():
        kept = [json.loads(line) for line in keep.read_text().splitlines()]
    run = 1 + max((one["run"] for one in kept), default=0)
    without = (WITHOUT, AGAIN) if beside else ()
    asks = {what: ask for what, ask in ASKS.items() if only in (what, None)}
    chance = random.Random(f"cost {run}")
    with engine(folder, apart, without) as (replicas, agent):
        for one in asked(replicas, agent, (WITH, ALONE, *without), asks, rounds, chance):
            kept.append({"run": run, **one})
            # At once: a run may be cut short.
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(kept[-1]) + "\n")
    show(kept)


@contextmanager
def engine(
    folder: Path, apart: bool, without: Sequence[str]
) -> Iterator[tuple[dict[str, Replica], AgentProcess]]:
    """The engine with the connector and those without, and the agent of the first."""
    model = make_model(folder.parent / "model")
    with tempfile.TemporaryDirectory(prefix="homing-test-", dir=roomy(ARENA_MIB)) as arena:
        agent = AgentProcess(WITH, folder, arena_folder=Path(arena))
        agent.start()
        plans = [
            BypassedPlan(name=WITH, agent=agent, apart=apart),
            *(Plan(name=name, connector=None, apart=apart) for name in without),
        ]
        try:
            with engines(plans, folder, model) as replicas:
                yield replicas, agent
        finally:
            agent.stop()


def asked(
    replicas: Mapping[str, Replica],
    agent: AgentProcess,
    arms: Sequence[str],
    asks: Mapping[str, Ask],
    rounds: int,
    chance: random.Random,
) -> Iterator[Round]:
    """So many rounds of either kind, in turn: what the machine does else hits all alike."""
    orders = list(permutations(arms))
    for number in range(rounds):
        if number % len(orders) == 0:
            chance.shuffle(orders)
        for what, ask in asks.items():
            one: Round = {"what": what, "wall": {}, "processor": {}, "agent": -agent.processor_s()}
            for name in orders[number % len(orders)]:
                replica, more = (replicas[WITH], LEFT_ALONE) if name == ALONE else (replicas[name], {})
                worked = replica.processor_s()
                one["wall"][name] = round(ask(replica, chance, more), 5)
                one["processor"][name] = round(replica.processor_s() - worked, 5)
            one["agent"] = round(one["agent"] + agent.processor_s(), 5)
            yield one


def first_token(replica: Replica, chance: random.Random, more: Mapping[str, Any]) -> float:
    """Seconds to the only token of an answer."""
    answer = replica.ask(text(chance, LENGTH), **more)
    assert answer.cached == 0, answer.body
    return answer.seconds


def many(replica: Replica, chance: random.Random, more: Mapping[str, Any]) -> float:
    """Seconds until all answers that were asked for at once are there."""
    prompts = [text(chance, AT_ONCE_LENGTH) for _ in range(AT_ONCE)]
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for answer in pool.map(lambda one: replica.ask(one, tokens=ANSWER, ignore_eos=True, **more), prompts):
            assert answer.status == 200, answer.body
    return time.perf_counter() - began


ASKS: Final[Mapping[str, Ask]] = {FIRST: first_token, MANY: many}


def show(rounds: Sequence[Round]) -> None:
    """Ratios of each round, their median and its interval."""
    for what, title in TITLES.items():
        runs: dict[int, list[Round]] = {}
        for one in rounds:
            if one["what"] == what:
                runs.setdefault(one["run"], []).append(one)
        if not runs:
            continue
        middle = statistics.median(one["wall"][WITH] for several in runs.values() for one in several)
        print(f"{title}: {middle * 1000:.0f} ms with the connector")
        for over, under, label in COMPARED:
            for figure in ("wall", "processor"):
                show_ratio(f"{label}, {figure}", ratios(runs, figure, over, under))
        agents = [[one["agent"] / one["processor"][WITH] for one in several] for several in runs.values()]
        show_ratio("the agent's processor time / the engine's", agents)


def ratios(runs: Mapping[int, Sequence[Round]], figure: str, over: str, under: str) -> list[list[float]]:
    """By run, and round of it; of those that have both."""
    found = [
        [one[figure][over] / one[figure][under] for one in several if {over, under} <= set(one[figure])]
        for several in runs.values()
    ]
    return [several for several in found if several]


def show_ratio(title: str, runs: Sequence[Sequence[float]]) -> None:
    """One line, where there is anything to tell."""
    if not runs:
        return
    middle, low, high = median_of_runs(runs)
    each = ", ".join(f"{statistics.median(one):.3f}" for one in runs)
    count = sum(map(len, runs))
    print(f"  {title:<66} {middle:6.3f} [{low:.3f}, {high:.3f}]   {count} rounds, by run: {each}", flush=True)


def median_of_runs(runs: Sequence[Sequence[float]], draws: int = 4000) -> tuple[float, float, float]:
    """The median over all, and its 95 % interval by bootstrap: runs are drawn, and rounds of each."""
    chance = random.Random(0)
    drawn = sorted(
        statistics.median(
            [one for run in chance.choices(runs, k=len(runs)) for one in chance.choices(run, k=len(run))]
        )
        for _ in range(draws)
    )
    whole = statistics.median([one for run in runs for one in run])
    return whole, drawn[round(0.025 * draws)], drawn[round(0.975 * draws) - 1]
