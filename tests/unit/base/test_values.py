"""Values name all their fields, in the constructor's order: all that a value can do goes by the names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import router
from router.base.values import Value


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in sorted(Path(router.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Value" for base in node.bases):
                yield f"{path.stem}.{node.name}", node


@pytest.mark.parametrize(("name", "made"), list(classes()))
def test_a_value_names_the_arguments_of_its_constructor_and_sets_each_once(name, made):
    names = next(
        ast.literal_eval(each.value)
        for each in made.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__match_args__"
    )
    init = next(each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    assert names == tuple(argument.arg for argument in init.args.args[1:]), name
    is_set = [
        (each.target.attr, ast.unparse(each.annotation), ast.unparse(each.value))
        for each in init.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Attribute) and each.value
    ]
    assert is_set == [(field, "Final", field) for field in names], name


def test_there_are_values():
    assert {"decide.Candidate", "decide.Decision", "request.Turn"} <= {name for name, _ in classes()}


class Point(Value):
    __match_args__ = ("x", "y")
    __slots__ = __match_args__

    def __init__(self, x: int, y: int = 0) -> None:
        self.x = x
        self.y = y


class Other(Value):
    __match_args__ = ("x", "y")
    __slots__ = __match_args__

    def __init__(self, x: int, y: int = 0) -> None:
        self.x = x
        self.y = y


def test_values_are_equal_by_class_and_fields():
    assert Point(1, 2) == Point(1, 2)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Other(1, 2)
    assert Point(1, 2) != (1, 2)


def test_a_value_with_changes_is_another_one():
    point = Point(1, 2)
    assert point.replace(y=3) == Point(1, 3)
    assert point == Point(1, 2)
    with pytest.raises(TypeError):
        point.replace(z=1)


def test_a_value_shows_its_fields():
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
