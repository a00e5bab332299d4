"""Compiles the modules of the hot path while a wheel is built; without a compiler the wheel is pure Python.

Hatchling calls this. `HOMING_COMPILE` says what to do: `auto` (also where it is not set) compiles if it can
and goes on without if it cannot, `1` fails where it cannot, `0` does not try. Which modules, and why these,
is in `pyproject.toml`. An editable install stays pure: its sources are there to be changed.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODES = ("auto", "1", "0")

# Types decide what code is made. Those of other packages are not looked at, whether or not they are here:
# so the code is the same everywhere, and a stub that is not quite true (msgspec's `Raw` is no `bytes`) does
# no harm. Our own are checked before, strictly, by mypy itself.
MYPY = """\
[mypy]
ignore_missing_imports = true
follow_imports = silent
no_site_packages = true
"""

# What one C file calls in another is called at once and not by way of a table that other libraries could
# change: nobody else's code calls any of it. The second is for calls of Python itself, and for ELF only.
FLAGS = ("-fvisibility=hidden", "-fno-plt") if sys.platform == "linux" else ("-fvisibility=hidden",)


class CompiledWheel(BuildHookInterface[Any]):
    """The `custom` build hook of the wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the builder's environment needs beside hatchling."""
        return [] if _mode() == "0" else ["mypy>=1.11", "setuptools>=65"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and put what came of it into the wheel."""
        mode = _mode()
        if version == "editable" or mode == "0":
            return
        why = _obstacle()
        if not why:
            self._work = Path(tempfile.mkdtemp(prefix="homing-compile-"))
            try:
                made = compile_modules(Path(self.root), self.config["modules"], self._work)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - both compilers may end the process
                why = f"{type(error).__name__}: {error}"
            else:
                build_data["force_include"] |= {str(self._work / name): name for name in made}
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                return
        if mode == "1":
            raise RuntimeError(f"HOMING_COMPILE=1, and the hot path cannot be compiled: {why}")
        self.app.display_warning(f"the wheel is pure Python, some two to three times slower: {why}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Throw the compiler's work away."""
        work = getattr(self, "_work", None)
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)


def compile_modules(tree: Path, modules: Sequence[str], work: Path) -> list[str]:
    """Compile `modules` of the package in `tree` within the folder `work`; the answer names the files made.

    Raises whatever the compilers raise, `SystemExit` included.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    shutil.copytree(tree / "router", work / "router", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (work / "mypy.ini").write_text(MYPY)
    paths = [module.replace(".", "/") + ".py" for module in modules]
    with _within(work):
        extensions = mypycify(
            ["--config-file=mypy.ini", "--python-version=3.11", *paths],
            opt_level="3",
            debug_level="0",
            group_name="homing",
            multi_file=True,  # a C file a module takes the compiler half the time that one of all does
        )
        if os.name == "posix":
            for extension in extensions:
                # A list of its own: mypyc gives all extensions the same one.
                extension.extra_compile_args = [*extension.extra_compile_args, *FLAGS]
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.inplace = True
        command.ensure_finalized()
        command.run()
        built = Path("build")
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return sorted(path.as_posix() for path in Path().rglob(f"*{suffix}") if built not in path.parents)


def _mode() -> str:
    mode = os.environ.get("HOMING_COMPILE", "auto")
    if mode not in MODES:
        raise RuntimeError(f"HOMING_COMPILE is {mode!r}; it may be {', '.join(MODES)}")
    return mode


def _obstacle() -> str:
    """What is missing for a compiler to work; empty if nothing is."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} has no use for it"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "no Python.h (Debian: python3-dev)"
    return ""


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    """In the folder, with it on the path: the compilers take both from the process."""
    sys.path.insert(0, str(folder))
    try:
        with chdir(folder):
            yield
    finally:
        sys.path.remove(str(folder))


if __name__ == "__main__":
    # python hatch_build.py FOLDER: a copy of the package with its modules compiled, to test or to profile.
    import tomllib

    here = Path(__file__).parent
    wheel = tomllib.loads((here / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "router", ignore_errors=True)
    print(*compile_modules(here, wheel["hooks"]["custom"]["modules"], folder), sep="\n")
