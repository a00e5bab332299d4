"""Tests on a real vLLM, on the processor, which take minutes: only `make engine-test` runs them."""

import os

# Those run in the engine's own environment, and the Makefile calls them there.
collect_ignore = ["inside"]
collect_ignore_glob = [] if "HOMING_ENGINE" in os.environ else ["*"]
