"""Runs what the router runs on, on both event loops that it may run on."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop
from hypothesis import HealthCheck, settings

import router
from router.base.build import kind_of_build

# How long an example takes is the machine's doing, and says nothing of what is tested.
settings.register_profile("homing", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("homing")


def pytest_report_header() -> str:
    """The tests of the hot path run on either build."""
    return f"homing: {kind_of_build()}, {router.__file__}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Compiled code has no places where a test could put something of its own."""
    if kind_of_build() == "compiled":
        skip = pytest.mark.skip(reason="replaces what is compiled")
        for item in items:
            if "monkeypatch" in getattr(item, "fixturenames", ()):
                item.add_marker(skip)


# Tests of these folders meet sockets, where the loops differ; elsewhere one loop is as good as the other.
_ON_BOTH = ("integration",)
# Client libraries do not care which loop the router runs on, so it runs on the one that it will.
_ON_UVLOOP = ("clients",)
# Nor do processes of their own, and virtual time, care which loop the test runs on.
_PROCESSES = ("test_workers", "test_operations", "test_several_routers")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """uvloop is what the router runs on; plain asyncio is what it falls back to."""
    if item.path.parent.name in _ON_BOTH and item.path.stem not in _PROCESSES:
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    if item.path.parent.name in _ON_UVLOOP or item.path.stem in _PROCESSES:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
