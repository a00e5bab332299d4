"""Which build this is."""

from importlib.machinery import ModuleSpec

import pytest

from router import __version__
from router.base import build
from router.base.build import kind_of_build, version_line


@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        ("/lib/router/dataplane/exchange.py", "pure"),
        ("/lib/router/dataplane/exchange.cpython-311-x86_64-linux-gnu.so", "compiled"),
        (None, "pure"),
    ],
)
def test_the_file_of_the_hot_path_tells(
    origin: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec("router.dataplane.exchange", None, origin=origin)
    monkeypatch.setattr(build, "find_spec", lambda _name: spec)
    assert kind_of_build() == kind


def test_this_build_says_what_it_is() -> None:
    import router.dataplane.exchange as hot

    assert kind_of_build() == ("pure" if hot.__file__.endswith(".py") else "compiled")


def test_people_are_told_the_version_and_the_build() -> None:
    assert version_line() == f"homing {__version__} ({kind_of_build()})"
