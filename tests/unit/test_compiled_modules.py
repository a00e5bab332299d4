"""What the compiler of the hot path takes and gets wrong is kept out of what is compiled."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]


def suspended_in_an_exception(source):
    """The lines at which a coroutine or generator may be left while it handles an exception."""
    blocks = [
        statement
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.Try)
        for part in (*(handler.body for handler in one.handlers), one.finalbody)
        for statement in part
    ]
    leaves = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncWith, ast.AsyncFor)
    return sorted({at.lineno for block in blocks for at in ast.walk(block) if isinstance(at, leaves)})


@pytest.mark.parametrize("module", MODULES)
def test_nothing_compiled_is_suspended_in_an_exception(module):
    """The interpreter puts a coroutine's exception aside while others run, and compiled code does not: what
    they raise was then chained to it, for good where several were left so at once."""
    source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
    assert suspended_in_an_exception(source) == []


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("try:\n  await a()\nexcept E:\n  pass", []),
        ("try:\n  pass\nexcept E:\n  raise await a()", [5]),
        ("try:\n  pass\nfinally:\n  await a()", [5]),
        ("try:\n  pass\nexcept E:\n  async with a():\n    pass", [5]),
        ("try:\n  pass\nexcept E:\n  yield 1", [5]),
    ],
)
def test_what_is_looked_for_is_found(body, lines):
    indented = "\n".join(f"  {line}" for line in body.split("\n"))
    assert suspended_in_an_exception(f"async def f():\n{indented}") == lines
