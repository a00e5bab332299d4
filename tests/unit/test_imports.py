"""What the command line loads before it knows what is asked of it."""

import subprocess
import sys

import pytest

# None of these is needed to print a help, and loading them is most of what a command does.
HEAVY = ("aiohttp", "pydantic", "httpx", "opentelemetry", "yaml", "msgspec", "uhashring", "uvloop")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["no-such-command"]])
def test_help_and_usage_errors_load_nothing_heavy(arguments):
    script = f"""
import sys
from router.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(*[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr, sep="LOADED")
sys.exit(any(name in sys.modules for name in {HEAVY!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_that_needs_them_loads_them():
    script = """
import sys
from router.cli import main
assert main(["schema"]) == 0
assert "pydantic" in sys.modules
assert "aiohttp" not in sys.modules, "describing files needs no server"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
