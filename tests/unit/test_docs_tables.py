"""The tables of README and docs say what the code says: each key, flag, kind and status, and no other."""

import argparse
import dataclasses
import json
import re
import typing
from collections.abc import Iterator

import pytest
import yaml
from pydantic import BaseModel
from support.pages import PAGES, TREE, code, table

from router.arguments import parser
from router.base.errors import ErrorKind, Refused
from router.core.decide import BUILT_IN, Kind
from router.dataplane.dialects import Dialect, dialect_of
from router.dataplane.problems import status_of
from router.settings.config import RouterConfig
from router.settings.credentials import KeysFile
from router.settings.explain import _models_in
from router.settings.kv import AgentFile, GatewayFile
from router.settings.load import load_policy
from router.settings.locate import shipped_policies
from router.settings.policy import Policy
from router.settings.strategies import PLACES_BY_BOUND, resolve
from router.simulator.faults import Fault
from router.simulator.faults import Kind as FaultKind

CONFIGURATION = "docs/configuration.md"
MODELS = (RouterConfig, Policy, KeysFile, AgentFile, GatewayFile)


def keys(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str]]:
    """Each key of a file with its default as the file would have it, or `required`."""
    for name, field in model.model_fields.items():
        inner = next(_models_in(field.annotation), None)
        if inner is not None and issubclass(inner, BaseModel):
            many = typing.get_origin(field.annotation) is tuple
            yield from keys(inner, f"{above}{name}[]." if many else f"{above}{name}.")
        elif field.is_required():
            yield above + name, "required"
        else:
            default = field.get_default(call_default_factory=True)
            shown = model.model_construct(**{name: default}).model_dump(mode="json", include={name})[name]
            yield above + name, _written(shown)


def _written(value: object) -> str:
    if isinstance(value, str):
        return value
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()


def test_every_key_is_described_with_its_default_and_no_other():
    described = [(code(row[0])[0], (code(row[1]) or [row[1]])[0]) for row in table(CONFIGURATION, "Key")]
    assert described == [pair for model in MODELS for pair in keys(model)]


def test_no_key_is_without_effect():
    assert not [row for row in table(CONFIGURATION, "Key") if "unused" in row[2].lower()]


def test_every_parameter_of_every_strategy_is_described():
    described = [(code(row[0])[0], code(row[1])[0]) for row in table(CONFIGURATION, "Parameter")]
    expected = [
        (f"{name}: {field.name}", str(field.default))
        for name in sorted(BUILT_IN)
        if name not in PLACES_BY_BOUND
        for field in dataclasses.fields(resolve(name).params)
    ]
    assert sorted(described) == sorted(expected)


def test_every_environment_variable_is_described():
    read = {
        name
        for path in (TREE / "router").rglob("*.py")
        for name in re.findall(r'"(HOMING_[A-Z_]+)"', path.read_text())
    }
    assert {code(row[0])[0] for row in table(CONFIGURATION, "Variable")} == read
    builds = set(re.findall(r'"(HOMING_[A-Z_]+)"', (TREE / "hatch_build.py").read_text()))
    for page in PAGES:
        assert set(re.findall(r"HOMING_[A-Z_]+", page.read_text())) <= read | builds, page.name


def test_every_strategy_and_shipped_policy_is_in_the_readme():
    rows = table("README.md", "Strategy")
    assert {code(row[0])[0] for row in rows} == set(BUILT_IN)
    listed = {(code(row[0])[0], policy) for row in rows for policy in code(row[1])}
    assert listed == {(load_policy(name).value.strategy, name) for name in shipped_policies()}


def _subcommands() -> dict[str, argparse.ArgumentParser]:
    (commands,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(commands.choices)


def test_every_command_is_in_the_readme():
    listed = [code(row[0])[0].removeprefix("homing ") for row in table("README.md", "Command")]
    assert listed == list(_subcommands())


def test_every_flag_of_the_simulated_replica_is_described_with_its_default():
    described = [
        (code(row[0])[0], (code(row[1]) or [row[1]])[0]) for row in table("docs/simulated-replica.md", "Flag")
    ]
    options = [action for action in _subcommands()["engine"]._actions if action.dest != "help"]
    assert described == [
        (action.option_strings[0], "required" if action.required else str(action.default))
        for action in options
    ]


def test_every_fault_of_the_simulated_replica_is_described():
    forms = [code(row[0])[0] for row in table("docs/simulated-replica.md", "Fault")]
    assert {form.partition(":")[0] for form in forms} == set(FaultKind)
    for form in forms:
        example = form.replace("[:RETRY_AFTER]", ":2")
        Fault.parse(re.sub("SECONDS|CHUNKS", "1", example).replace("CODE", "503"))


def test_every_kind_of_decision_is_described():
    rows = table("docs/life-of-a-turn.md", "Kind")
    described = [code(row[0])[0] for row in rows if row[0] != "Kind"]
    assert described[: len(Kind)] == list(Kind)


def test_every_kind_of_error_is_described_with_its_status():
    rows = [row for row in table("docs/life-of-a-turn.md", "Kind") if row[1].isdigit()]
    assert [(code(row[0])[0], int(row[1])) for row in rows] == [
        (kind.value, status_of(Refused(kind, ""))) for kind in ErrorKind
    ]


def test_every_dialect_is_described_with_its_paths():
    described = {
        path: code(f"`{row[0]}`")[0]
        for row in table("docs/life-of-a-turn.md", "Dialect")
        for path in code(row[1])
    }
    assert set(described.values()) == set(Dialect)
    assert {path: dialect_of(path) for path in described} == described


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_pages_show_json_that_is_json(page):
    for quoted in re.findall(r"-d '(\{.*?\})'", page.read_text()):
        assert json.loads(quoted)
