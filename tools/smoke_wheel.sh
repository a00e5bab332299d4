#!/usr/bin/env bash
# Builds the wheel and tries it where the source tree cannot be seen: a virtual environment and a working
# directory of its own. Takes the Python to build with as its argument; it needs the package `build`.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH
# The pure wheel, which any machine can use; `make test-compiled` tries the other.
export HOMING_COMPILE=0

"$python" -m build --wheel --outdir "$work/dist" "$tree" >"$work/build.log" 2>&1 || {
    cat "$work/build.log" >&2
    exit 1
}
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/dist/homing-*.whl

cd "$work"
bin=$work/venv/bin
"$bin/homing" --version
shipped=$("$bin/python" - <<'PYTHON'
from pathlib import Path

import router
from router.settings.locate import shipped_policies

inside = Path(router.__file__).parent / "_policies"
policies = shipped_policies()
assert policies, "the wheel brings no policies"
assert all(path.parent == inside for path in policies.values()), policies
assert (inside.parent / "py.typed").is_file(), "the wheel does not say that it is typed"
print(policies["home"])
PYTHON
)
"$bin/homing" check "$shipped"
"$bin/homing" schema | "$bin/python" -m json.tool >/dev/null
"$bin/homing" demo
echo "the wheel works outside the source tree"
