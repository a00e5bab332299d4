"""The programs in `tools/`, which are no package, as modules."""

import importlib.util
from types import ModuleType

from support.pages import TREE


def load(name: str) -> ModuleType:
    """`tools/NAME.py`."""
    spec = importlib.util.spec_from_file_location(name, TREE / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
