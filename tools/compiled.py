"""Runs a module of this checkout, of `loadtest` say, on the package that is installed: the compiled one.

    .venv-built/bin/python tools/compiled.py loadtest.cells TRACE ...

Where Python runs the module itself, the checkout's own `router` is found first, which is not compiled.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # In the place of this script's folder, and behind all that is installed.
    del sys.path[0]
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
