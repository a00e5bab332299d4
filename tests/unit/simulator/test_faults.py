"""Faults: how they are written, and which request one hits."""

import asyncio

import pytest

from router.simulator.faults import BadFault, Fault, FaultPlan, Kind


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang", Fault(Kind.HANG)),
        ("hold", Fault(Kind.HOLD)),
        ("cut:3", Fault(Kind.CUT, 3.0)),
        ("slow:0.25", Fault(Kind.SLOW, 0.25)),
        ("refuse:2", Fault(Kind.REFUSE, 2.0)),
        ("status:500", Fault(Kind.STATUS, 500.0)),
        (" status:503:7 ", Fault(Kind.STATUS, 503.0, "7")),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert Fault.parse(text) == fault


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("explode", "one of refuse, hang"),
        ("cut", "takes 1 to 1"),
        ("hang:1", "takes 0 to 0"),
        ("cut:x", "'x' is not a number"),
        ("status:200", "between 400 and 599"),
        ("slow:-1", "between 0 and 3600"),
        ("slow:nan", "between 0 and 3600"),
    ],
)
def test_a_fault_that_cannot_be_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadFault, match=why):
        Fault.parse(text)


def test_a_fault_is_used_up_by_as_many_requests_as_it_is_for() -> None:
    plan = FaultPlan()
    plan.arm(Fault(Kind.HANG), count=2)
    assert [plan.take("/v1/models") for _ in range(3)] == [Fault(Kind.HANG), Fault(Kind.HANG), None]


def test_a_fault_without_a_count_lasts_until_it_is_cleared() -> None:
    plan = FaultPlan()
    plan.arm(Fault(Kind.HANG))
    assert all(plan.take("/x") for _ in range(5))
    plan.clear()
    assert plan.take("/x") is None


async def test_clearing_lets_go_what_was_held_until_then_and_nothing_later() -> None:
    plan = FaultPlan()
    plan.clear()
    held = [asyncio.ensure_future(plan.cleared()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in held)
    plan.clear()
    later = asyncio.ensure_future(plan.cleared())
    await asyncio.gather(*held)
    assert not later.done()
    later.cancel()


def test_a_fault_hits_its_paths_only() -> None:
    plan = FaultPlan()
    plan.arm(Fault(Kind.STATUS, 503), path="/health")
    plan.arm(Fault(Kind.CLOSE), count=1, path="/v1/")
    assert plan.take("/metrics") is None
    assert plan.take("/v1/models") == Fault(Kind.CLOSE)
    assert plan.take("/v1/models") is None
    assert plan.take("/health") == Fault(Kind.STATUS, 503)


def test_a_fault_for_no_request_is_refused() -> None:
    with pytest.raises(BadFault, match="at least 1"):
        FaultPlan().arm(Fault(Kind.HANG), count=0)
