"""The check that each module has its test."""

import pytest
from support import tools


@pytest.fixture(scope="module")
def tool():
    return tools.load("check_test_pairing")


@pytest.fixture
def tree(tmp_path):
    def write(name: str, text: str = "def f():\n    return 1\n") -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("router/a/paired.py")
    write("tests/unit/a/test_paired.py")
    write("router/a/__init__.py", '"""A package."""\n')
    return write


def test_a_tree_where_each_module_has_its_test_has_no_faults(tool, tree, tmp_path):
    assert list(tool.faults(tmp_path, {})) == []


def test_a_module_without_a_test_is_told_with_the_file_that_it_wants(tool, tree, tmp_path):
    tree("router/a/alone.py")
    tree("tests/unit/b/test_alone.py")
    assert list(tool.faults(tmp_path, {})) == ["router/a/alone.py: has no tests/unit/a/test_alone.py"]


def test_a_module_may_be_tested_in_a_place_that_is_there(tool, tree, tmp_path):
    tree("router/a/alone.py")
    tree("tests/integration/test_all.py")
    assert list(tool.faults(tmp_path, {"router/a/alone.py": "tests/integration/test_all.py"})) == []


def test_a_line_of_the_list_that_is_not_true_is_a_fault(tool, tree, tmp_path):
    tree("router/a/alone.py")
    found = list(
        tool.faults(
            tmp_path,
            {
                "router/a/alone.py": "tests/integration/gone.py",
                "router/a/gone.py": "tests",
                "router/a/paired.py": "tests",
            },
        )
    )
    assert found == [
        "router/a/paired.py: has tests/unit/a/test_paired.py, and is listed as tested elsewhere",
        "router/a/alone.py: is listed as tested by tests/integration/gone.py, which is not there",
        "router/a/gone.py: is listed as tested elsewhere, and there is no such module",
    ]


@pytest.mark.parametrize(
    ("source", "runs"),
    [
        ('"""Values."""\nX = 1\n', False),
        ("class P:\n    def choose(self): ...\n", False),
        ('class P:\n    def choose(self):\n        """Says."""\n        ...\n', False),
        ("class P:\n    def choose(self):\n        return 1\n", True),
        ("async def f():\n    await g()\n", True),
    ],
)
def test_only_code_that_runs_wants_a_test(tool, source, runs):
    assert tool.runs_something(source) is runs
