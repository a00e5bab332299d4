"""The simulated replica does, step by step, what vLLM's scheduler did when `make calibrate` recorded it."""

from pathlib import Path

import pytest

from loadtest.calibrate.counts import read
from loadtest.calibrate.scenarios import by_chance, rules
from loadtest.calibrate.script import Record, Script, differences
from loadtest.calibrate.simulated import SimulatedScheduler

RECORDED = list(read(Path(__file__).with_name("vllm-scheduler.jsonl.gz")))


@pytest.mark.parametrize(("script", "real"), RECORDED, ids=[script.name for script, _ in RECORDED])
def test_the_model_does_what_vllm_did(script: Script, real: Record) -> None:
    assert differences(real, SimulatedScheduler(script.limits).run(script)) == {}


def test_the_record_is_of_these_scripts_and_tries_what_matters() -> None:
    scripts = [*rules(), *map(by_chance, range(len(RECORDED) - len(list(rules()))))]
    assert [script for script, _ in RECORDED] == scripts
    steps = [step for _, real in RECORDED for step in real.steps]
    assert sum(len(step.preempted) for step in steps) > 20
    assert sum(cached > 0 for step in steps for _, cached in step.first) > 500
    assert any(tick.aborts for script in scripts for tick in script.ticks)
    assert any(step.waiting and step.used for step in steps)
