"""Running sources: what they find becomes the fleet, what they cannot find out changes nothing."""

import asyncio
import logging

import pytest
from support.plane import until

from router.base.clock import ManualClock
from router.controlplane import discovery as module
from router.controlplane.discovery import Discovery
from router.controlplane.roster import MAX_REPLICAS, Listed
from router.core.fleet import ReplicaSpec


def listed(*names: str) -> list[Listed]:
    return [Listed(ReplicaSpec(name, f"http://{name}:8000")) for name in names]


class Source:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.report = None
        self.runs = 0
        self.error: Exception | None = None

    async def run(self, report) -> None:
        self.runs += 1
        self.report = report
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


class Fleet:
    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.busy: set[str] = set()
        self.told: list[tuple[list[str], set[str]]] = []
        self.discovery = Discovery(self.clock, self.changed, self.busy.__contains__, hold_s=30.0)

    def changed(self, fleet, leaving) -> None:
        self.told.append(([one.spec.id for one in fleet], set(leaving)))


@pytest.fixture
async def fleet():
    made = Fleet()
    yield made
    await made.discovery.close()


@pytest.fixture
async def source(fleet):
    made = Source()
    fleet.discovery.set_sources({"dns": made})
    await until(lambda: made.report is not None)
    return made


async def test_what_is_found_joins_what_the_config_lists(fleet, source):
    fleet.discovery.list_config(listed("a"))
    source.report.found(listed("b"))
    source.report.found(listed("b"))
    assert fleet.told == [(["a"], set()), (["a", "b"], set())]


async def test_a_source_that_cannot_find_out_changes_nothing_and_it_shows(fleet, source, caplog):
    caplog.set_level(logging.INFO)
    source.report.found(listed("a"))
    fleet.clock.advance(7.0)
    for _ in range(3):
        source.report.failed("no answer within 5 s")
    assert fleet.told == [(["a"], set())]
    [status] = fleet.discovery.status()
    assert status == ("dns", 1, "no answer within 5 s", 7.0, 3)
    source.report.found(listed("a"))
    [status] = fleet.discovery.status()
    assert (status.fault, status.age_s, status.faults) == ("", 0.0, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "discovery: dns: no answer within 5 s, and the replicas that it named last stay",
        "discovery: dns: well again",
    ]


async def test_an_answer_that_is_understood_in_part_is_used_and_the_rest_shows(fleet, source, caplog):
    source.report.found(listed("a"), "'a b' is no host")
    assert fleet.told == [(["a"], set())]
    assert fleet.discovery.status()[0].fault == "'a b' is no host"
    assert "and the rest is in use" in caplog.text


async def test_an_absurd_answer_is_none(fleet, source):
    source.report.found(listed(*map(str, range(MAX_REPLICAS + 1))))
    assert fleet.told == []
    assert "more than" in fleet.discovery.status()[0].fault


async def test_one_that_vanished_leaves_while_it_has_turns(fleet, source, monkeypatch):
    monkeypatch.setattr(module, "_SWEEP_S", 0.001)
    fleet.discovery.set_sources({"dns": source})
    await until(lambda: source.runs == 2)
    source.report.found(listed("a", "b"))
    fleet.busy.add("b")
    source.report.found(listed("a"))
    assert fleet.told[-1] == (["a", "b"], {"b"})
    fleet.clock.advance(100.0)
    await asyncio.sleep(0.02)
    assert fleet.told[-1] == (["a", "b"], {"b"})
    fleet.busy.clear()
    await until(lambda: fleet.told[-1] == (["a"], set()))


async def test_what_a_source_found_stays_until_its_successor_answers(fleet, source):
    source.report.found(listed("a"))
    old = source.report
    other = Source()
    fleet.discovery.set_sources({"dns": other})
    await until(lambda: other.report is not None)
    old.found(listed("z"))
    assert fleet.told == [(["a"], set())]
    other.report.found(listed("b"))
    assert fleet.told[-1] == (["a", "b"], {"a"})


async def test_what_a_source_found_leaves_with_it(fleet, source):
    source.report.found(listed("a"))
    fleet.discovery.set_sources({})
    assert fleet.told[-1] == (["a"], {"a"})
    assert fleet.discovery.status() == ()


async def test_the_first_answers_are_waited_for_and_not_for_ever(fleet, source):
    await fleet.discovery.first_answers(0.01)
    source.report.failed("nothing yet")
    await fleet.discovery.first_answers(30.0)


async def test_a_source_with_a_fault_of_ours_is_begun_again(fleet, caplog, monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.001)
    broken = Source()
    broken.error = ZeroDivisionError("ours")
    fleet.discovery.set_sources({"file": broken})
    await until(lambda: broken.runs > 2)
    assert fleet.discovery.status()[0].fault == "the router's own search failed: ZeroDivisionError"
    assert "discovery: file failed" in caplog.text


async def test_conflicts_are_told_once(fleet, source, caplog):
    fleet.discovery.list_config(listed("a"))
    for _ in range(2):
        source.report.found([Listed(ReplicaSpec("x", "http://a:8000"))])
    assert caplog.text.count("dns: x is left out: http://a:8000 is a already") == 1
