"""The choice of the interpreter that builds are measured with."""

import os
import sys

import pytest
from support import tools


@pytest.fixture(scope="module")
def tool():
    return tools.load("quickest_python")


def timed(times):
    """A trial that takes what is left of the times of each interpreter."""
    left = {name: list(each) for name, each in times.items()}
    return lambda name: left[name].pop(0)


def test_another_one_is_taken_where_it_is_quicker_by_a_tenth(tool):
    assert tool.quickest("own", ["other"], timed({"own": [100] * 3, "other": [89] * 3})) == "other"
    assert tool.quickest("own", ["other"], timed({"own": [100] * 3, "other": [91] * 3})) == "own"


def test_the_least_of_some_rounds_counts(tool):
    times = {"own": [300, 100, 300], "slow": [250, 120, 110], "quick": [400, 400, 70]}
    assert tool.quickest("own", ["slow", "quick"], timed(times)) == "quick"


def test_one_that_cannot_build_is_left_out(tool):
    assert tool.quickest("own", ["other"], timed({"own": [100] * 3, "other": [None] * 3})) == "own"


def test_whoever_cannot_be_tried_is_kept_and_says_so_itself(tool):
    assert tool.quickest("own", ["other"], timed({"own": [None] * 3, "other": [10] * 3})) == "own"


def test_without_others_nothing_is_tried(tool):
    assert tool.quickest("own", [], timed({})) == "own"


def test_interpreters_are_found_in_the_order_of_the_path_and_each_once(tool, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, names in ((first, ["python3.12", "python3.12-config", "python3"]), (second, ["python3.13"])):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    (second / "python3.12").symlink_to(first / "python3.12")
    (second / "python3.11").write_text("not to be run")

    path = os.pathsep.join((str(first), "", str(tmp_path / "none"), str(second)))

    assert list(tool.candidates("/own", path)) == [
        "/own",
        str(first / "python3.12"),
        str(second / "python3.13"),
    ]
    assert list(tool.candidates(str(first / "python3.12"), path))[1:] == [str(second / "python3.13")]


def test_the_one_that_runs_this_is_timed(tool):
    assert tool.trial_ns(sys.executable) > 0


def test_what_is_no_interpreter_has_no_time(tool, tmp_path):
    assert tool.trial_ns("/bin/false") is None
    assert tool.trial_ns(str(tmp_path / "none")) is None
