"""Values that are made of plain tuples have all their fields: nothing checks it where they are made."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import router
from router.base.values import maker
from router.core import chain_watch, decide, observe, request
from router.dataplane import routing

MAKERS = {
    "make_candidate": decide.Candidate,
    "make_view": decide.FleetView,
    "make_choice": decide.Choice,
    "make_decision": decide.Decision,
    "make_usage": observe.Usage,
    "make_ended": observe.Ended,
    "make_chain": request.Chain,
    "make_turn": request.Turn,
    "make_told": chain_watch.Told,
    "make_wait": routing.Wait,
}


def uses() -> Iterator[tuple[str, str, int]]:
    """Where each maker is called, and with how many fields."""
    for path in sorted(Path(router.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                [fields] = node.args
                assert isinstance(fields, ast.Tuple), f"{path}:{node.lineno}"
                yield f"{path.name}:{node.lineno}", node.func.id, len(fields.elts)


@pytest.mark.parametrize(("where", "made", "fields"), list(uses()))
def test_a_value_is_made_with_all_its_fields(where, made, fields):
    assert fields == len(MAKERS[made]._fields), where


def test_every_maker_is_used_and_known():
    assert {made for _, made, _ in uses()} == set(MAKERS)
    for module in (chain_watch, decide, observe, request, routing):
        assert {name for name in vars(module) if name.startswith("make_")} <= set(MAKERS)


def test_what_is_made_is_what_the_constructor_makes():
    class Point(NamedTuple):
        x: int
        y: int = 0

    made = maker(Point)((1, 2))
    assert made == Point(1, 2)
    assert (type(made), made.y) == (Point, 2)
