"""From names to strategies: built-in ones, those of one's own, and what is neither."""

import pytest
from pydantic import ValidationError

from router.core.decide import BUILT_IN
from router.settings.policy import Policy
from router.settings.strategies import parameters, resolve

GOOD = """\
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Params:
    __pydantic_config__: ClassVar = {"extra": "forbid"}
    weight: float = 1.0

class Mine:
    Params = Params

    def __init__(self, params):
        self.params = params

    def choose(self, turn, view, rng): ...
"""
OPEN = GOOD.replace('    __pydantic_config__: ClassVar = {"extra": "forbid"}\n', "")
BARE = GOOD.replace("    Params = Params\n", "")


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """Writes a module of that code and returns the `module:Class` of its `Mine`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"own_strategy_{abs(hash(request.node.nodeid))}"

    def write(code: str) -> str:
        (tmp_path / f"{module}.py").write_text(code)
        return f"{module}:Mine"

    return write


def policy(strategy: str, **more: object) -> Policy:
    return Policy.model_validate({"version": 1, "policy": "p", "strategy": strategy, **more})


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_name_leads_to_a_strategy(name):
    strategy = resolve(name)
    assert strategy.path == BUILT_IN[name]
    built = strategy.build(parameters(strategy, policy(name)))
    assert type(built) is strategy.make


def test_a_strategy_of_ones_own_is_imported_and_gets_its_parameters(own):
    name = own(GOOD)
    strategy = resolve(name)
    assert strategy.path == name
    assert strategy.build(parameters(strategy, policy(name, params={"weight": 2.5}))).params.weight == 2.5


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("Mine = 3\n", "'MODULE:Mine' is not a class with a method 'choose'"),
        ("class Mine:\n    pass\n", "'MODULE:Mine' is not a class with a method 'choose'"),
        ("", "'MODULE:Mine' is not a class with a method 'choose'"),
        (BARE, "'MODULE:Mine' has no dataclass 'Params' for its parameters"),
        (OPEN, "'MODULE:Mine' would take misspelt parameters: set __pydantic_config__ extra to 'forbid'"),
        (
            "raise RuntimeError('not today')\n",
            "cannot import 'MODULE' from Python's path (PYTHONPATH): RuntimeError: not today",
        ),
        (
            "def broken(:\n",
            "cannot import 'MODULE' from Python's path (PYTHONPATH): "
            "SyntaxError: invalid syntax (MODULE.py, line 1)",
        ),
    ],
)
def test_a_strategy_of_ones_own_that_is_none_says_why(own, code, expected):
    name = own(code)
    with pytest.raises(ValueError, match=r"Mine|import") as caught:
        resolve(name)
    assert str(caught.value) == expected.replace("MODULE", name.removesuffix(":Mine"))


@pytest.mark.parametrize("name", ["prised", "a b:C", "mod:", ":C", "mod:C.D", "../x:C", ""])
def test_a_name_that_is_no_module_and_class_is_not_imported(name):
    with pytest.raises(ValueError, match=r"^unknown strategy"):
        resolve(name)


def test_priced_takes_its_parameters_from_the_bound():
    given = policy("priced", place={"bound": {"relative": 1.5, "absolute": 7}})
    params = parameters(resolve("priced"), given)
    assert (params.relative, params.absolute) == (1.5, 7.0)


def test_a_bound_in_tokens_is_not_given_to_a_strategy_that_counts_turns():
    given = policy("bounded-ring", place={"bound": {"relative": 1.5, "absolute": 7}})
    strategy = resolve("bounded-ring")
    assert parameters(strategy, given) == strategy.params()


@pytest.mark.parametrize("params", [{"absolut": 1.0}, {"absolute": "1"}, {"relative": True}])
def test_parameters_are_strict(params):
    with pytest.raises(ValidationError):
        parameters(resolve("bounded-ring"), policy("bounded-ring", params=params))
