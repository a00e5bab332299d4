"""Another package called `router` is noticed, where it comes first and where it mixes with ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import router
from router.connector.origin import require_own_package

TREE = Path(__file__).parents[3]


def import_connector(*path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import router.connector"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
    )


def test_our_own_is_accepted() -> None:
    assert import_connector(TREE).returncode == 0


def test_one_that_comes_first_has_no_connector(tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").touch()
    done = import_connector(tmp_path, TREE)
    assert "No module named 'router.connector'" in done.stderr
    assert done.returncode != 0


def test_one_that_takes_ours_into_its_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text(
        "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    )
    done = import_connector(tmp_path, TREE)
    assert done.returncode != 0
    assert "ImportError: the package 'router' comes from" in done.stderr
    assert str(tmp_path / "router") in done.stderr
    assert str(TREE / "router") in done.stderr


def test_a_connector_out_of_another_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="another package"):
        require_own_package("router.connector", [str(tmp_path / "router" / "connector")])
    require_own_package("router.connector", [str(Path(router.__path__[0]) / "connector")])
