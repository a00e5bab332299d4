"""Each shipped policy resolves to the plan recorded beside this file: a diff there is a change of routing.

HOMING_REWRITE_GOLDEN=1 records anew.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from router.settings.build import build_plan
from router.settings.load import load_policy
from router.settings.locate import shipped_policies
from router.settings.strategies import parameters, resolve

RECORDED = Path(__file__).parent / "policies"
NAMES = sorted(shipped_policies())


def resolved(name: str) -> str:
    loaded = load_policy(name)
    strategy = resolve(loaded.value.strategy)
    plan = build_plan(loaded.value)
    lines = [f"name: {plan.name}", f"strategy: {strategy.path}"]
    lines += lines_of("  ", parameters(strategy, loaded.value))
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if field.name in ("name", "strategy"):
            continue
        if dataclasses.is_dataclass(value):
            lines += [f"{field.name}:", *lines_of("  ", value)]
        else:
            lines.append(f"{field.name}: {value}")
    lines += [f"notice: {notice.partition(': ')[2]}" for notice in loaded.notices]
    return "\n".join(lines) + "\n"


def lines_of(indent: str, value: object) -> list[str]:
    return [f"{indent}{field.name}: {getattr(value, field.name)}" for field in dataclasses.fields(value)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_policy_resolves_to_its_recorded_plan(name):
    file = RECORDED / f"{name}.txt"
    if os.environ.get("HOMING_REWRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(resolved(name))
    assert resolved(name) == file.read_text()


def test_every_recorded_plan_has_its_policy():
    assert sorted(path.stem for path in RECORDED.glob("*.txt")) == NAMES
