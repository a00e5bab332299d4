"""Where files are looked for, and how their places are shown."""

from pathlib import Path

import pytest

import router
from router.settings.locate import find_file, is_bare_name, places_of, shipped_policies, shown


def test_beside_the_file_comes_before_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "config"
    folder.mkdir()
    assert find_file("x", folder) is None
    (tmp_path / "x").touch()
    assert find_file("x", folder) == Path("x")
    (folder / "x").touch()
    assert find_file("x", folder) == folder / "x"
    assert places_of("x", folder) == (folder / "x", Path("x"))


def test_an_absolute_path_is_that_path(tmp_path):
    (tmp_path / "x").touch()
    assert find_file(str(tmp_path / "x"), Path("/elsewhere")) == tmp_path / "x"


@pytest.mark.parametrize(
    ("written", "bare"),
    [("home", True), ("ring-queued", True), ("home.yaml", False), ("home.yml", False), ("./home", False)],
)
def test_a_policy_is_meant_by_name_unless_it_looks_like_a_file(written, bare):
    assert is_bare_name(written) is bare


def test_paths_are_shown_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(Path("config/../policies/home.yaml")) == "policies/home.yaml"
    assert shown(tmp_path / "x.yaml") == "x.yaml"
    assert shown(Path("/elsewhere/x.yaml")) == "/elsewhere/x.yaml"


def test_the_package_is_asked_before_the_checkout(tmp_path, monkeypatch):
    package = tmp_path / "router"
    package.mkdir()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "beside.yaml").touch()
    monkeypatch.setattr(router, "__file__", str(package / "__init__.py"))
    assert list(shipped_policies()) == ["beside"]
    (package / "_policies").mkdir()
    (package / "_policies" / "inside.yaml").touch()
    assert list(shipped_policies()) == ["inside"]
