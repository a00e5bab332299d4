"""The frame around the code: image, wheel, CI and changelog agree with the tree."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from random import Random

import pytest
from support.insight import insight
from support.pages import TREE
from support.reloads import Reloads

import router
from router.base.clock import ManualClock
from router.controlplane.admin import AdminServer, AdminSources
from router.core.engine import Engine
from router.settings.build import build_plan
from router.settings.check import check_files
from router.settings.config import RouterConfig
from router.settings.load import load_policy

PROJECT = tomllib.loads((TREE / "pyproject.toml").read_text())


def instructions() -> Iterator[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, comments and line breaks taken out."""
    lines = [line for line in (TREE / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            yield name, arguments.strip()


def arguments_of(name: str) -> list[str]:
    return [arguments for found, arguments in instructions() if found == name]


def copies() -> list[tuple[list[str], str]]:
    """What is copied from the tree, and where to."""
    found = [shlex.split(arguments) for arguments in arguments_of("COPY")]
    return [(words[:-1], words[-1]) for words in found if not words[0].startswith("--from")]


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a path of the tree through. The last line that matches counts."""
    kept = True
    for line in (TREE / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            inner = pattern.removeprefix("**/")
            parts = Path(path).parts
            beginnings = [Path(*parts[: at + 1]).as_posix() for at in range(len(parts))]
            names = parts if inner != pattern else beginnings
            if any(fnmatch(name, inner) for name in names):
                kept = line.startswith("!")
    return kept


def test_what_the_image_copies_is_there_and_reaches_the_builder():
    sources = [source for words, _ in copies() for source in words]
    assert {"pyproject.toml", "router", "policies", "config"} <= set(sources)
    for source in sources:
        assert (TREE / source).exists(), source
        assert in_context(source), source


def test_nothing_else_reaches_the_builder():
    sources = {source for words, _ in copies() for source in words}
    assert {path.name for path in TREE.iterdir() if in_context(path.name)} == sources
    assert in_context("router/core/engine.py")
    assert not in_context("router/core/__pycache__/engine.cpython-311.pyc")
    assert not in_context(".git")
    assert not in_context(".venv")


def test_the_builder_has_all_that_the_wheel_is_made_from():
    project, wheel = PROJECT["project"], PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {
        "pyproject.toml",
        project["readme"],
        *project["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
        Path(PROJECT["tool"]["hatch"]["version"]["path"]).parts[0],
    }
    built_from = {source for words, to in copies() if not to.startswith("/") for source in words}
    assert needed <= built_from


def test_the_image_runs_the_command_that_the_wheel_installs():
    (entry,) = arguments_of("ENTRYPOINT")
    (command,) = json.loads(entry)
    module, _, function = PROJECT["project"]["scripts"][command].partition(":")
    assert callable(getattr(import_module(module), function))


def test_the_image_is_not_root_and_opens_the_data_port():
    (user,) = arguments_of("USER")
    assert user.isdigit()
    assert int(user) > 0
    assert any(f"--uid {user} " in arguments for arguments in arguments_of("RUN"))
    assert arguments_of("EXPOSE") == [str(RouterConfig(version=1).listen.port)]
    bases = {arguments.split()[0] for arguments in arguments_of("FROM")}
    minimum = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert bases == {f"python:{minimum}-slim"}


def test_the_images_default_command_finds_a_config_without_fault(tmp_path, monkeypatch):
    (default,) = arguments_of("CMD")
    serve, flag, config = json.loads(default)
    assert (serve, flag) == ("serve", "-c")
    placed = {
        Path(to) / ("" if (TREE / source).is_dir() else source): TREE / source
        for sources, to in copies()
        for source in sources
        if to.startswith("/")
    }
    for to, source in placed.items():
        there = tmp_path / to.relative_to("/")
        there.mkdir(parents=True, exist_ok=True)
        for file in source.iterdir():
            (there / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path / arguments_of("WORKDIR")[-1].removeprefix("/"))
    found = check_files([tmp_path / config.removeprefix("/")], {})
    assert found.faults == ()


def health_check() -> list[str]:
    (arguments,) = arguments_of("HEALTHCHECK")
    command: list[str] = json.loads(arguments.partition("CMD ")[2])
    return command


async def test_the_health_check_tells_a_router_that_lives_from_one_that_does_not(monkeypatch):
    interpreter, *rest = health_check()
    assert interpreter.startswith("/opt/homing/bin/")
    asked = f"http://127.0.0.1:{RouterConfig(version=1).admin.listen.port}/livez"
    assert asked in rest[-1]
    sources = AdminSources(
        metrics=str, policy=str, explain=lambda *_: {}, reloads=Reloads(), insight=insight()
    )
    plan = build_plan(load_policy("home").value)
    server = AdminServer(Engine([plan], rng=Random(0)), ManualClock(), sources)
    await server.start("127.0.0.1", 0)
    # A proxy for everything else must not be asked; nothing listens there.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    here = [*rest[:-1], rest[-1].replace(asked, f"http://127.0.0.1:{server.port}/livez")]

    def check() -> int:
        return subprocess.run([sys.executable, *here], capture_output=True, check=False).returncode

    try:
        assert await asyncio.to_thread(check) == 0
    finally:
        await server.close()
    assert await asyncio.to_thread(check) != 0


def test_ci_runs_targets_that_exist_and_the_tests_last():
    script = (TREE / ".ci/run").read_text()
    asked = re.findall(r"^(?:[A-Z_]+=\S+ )?make (.+)$", script, re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):", (TREE / "Makefile").read_text(), re.MULTILINE))
    assert set(asked) <= targets
    assert asked[-1] == "test"
    assert set(asked) >= {"lint", "types", "check", "smoke", "test", "test-compiled"}
    assert "set -euo pipefail" in script


def test_every_target_has_a_line_in_the_help():
    makefile = (TREE / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert set(phony.split()) == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def test_the_changelog_knows_this_version():
    assert f"\n## [{router.__version__}]" in (TREE / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "CHANGELOG.md"])
def test_the_files_that_people_look_for_have_something_in_them(name):
    assert len((TREE / name).read_text()) > 500
