"""What befalls a request, and what needs none."""

import asyncio

import pytest
from aiohttp.test_utils import make_mocked_request

from router.simulator.calls import Call, Record
from router.simulator.faults import Fault, FaultPlan, Kind
from router.simulator.mishaps import Mishaps
from router.simulator.refusals import Refusal


class Control:
    def __init__(self) -> None:
        self.asked: list[object] = []

    def refuse(self, seconds: float) -> None:
        self.asked.append(seconds)

    def die(self) -> None:
        self.asked.append("die")


@pytest.fixture
def control() -> Control:
    return Control()


@pytest.fixture
def mishaps(control: Control) -> Mishaps:
    return Mishaps(FaultPlan(), control)


def call(fault: str | None = None) -> Call:
    headers = {"X-Sim-Fault": fault} if fault is not None else {}
    request = make_mocked_request("POST", "/v1/chat/completions", headers)
    return Call(request, Record("POST", "/v1/chat/completions", headers))


def test_a_request_asks_for_its_own_fault_before_any_plan(mishaps: Mishaps) -> None:
    assert mishaps.of(call().request) is None
    mishaps.arm(Fault.parse("hang"), count=2, path="/")
    assert mishaps.of(call("status:503").request) == Fault.parse("status:503")
    planned = mishaps.of(call().request)
    assert planned is not None
    assert planned.kind is Kind.HANG
    with pytest.raises(Refusal) as refused:
        mishaps.of(call("no such").request)
    assert refused.value.status == 400


async def test_what_befalls_a_body_is_left_to_who_sends_it(mishaps: Mishaps) -> None:
    of, fault = call(), Fault.parse("cut:1")
    assert await mishaps.befall(of, fault) is None
    assert of.fault is fault


async def test_a_status_is_the_answer(mishaps: Mishaps) -> None:
    answer = await mishaps.befall(call(), Fault.parse("status:503"))
    assert answer is not None
    assert answer.status == 503


async def test_a_hold_lasts_until_it_is_cleared(control: Control) -> None:
    plan = FaultPlan()
    mishaps = Mishaps(plan, control)
    mishaps.arm(Fault.parse("hold"), count=None, path="/")
    held = asyncio.ensure_future(mishaps.befall(call(), Fault.parse("hold")))
    await asyncio.sleep(0)
    assert not held.done()
    plan.clear()
    assert await held is None


@pytest.mark.parametrize(("text", "asked"), [("die", ["die"]), ("refuse:3", [3.0]), ("hang", [])])
async def test_the_rest_is_never_answered(
    text: str, asked: list[object], mishaps: Mishaps, control: Control
) -> None:
    lost = asyncio.ensure_future(mishaps.befall(call(), Fault.parse(text)))
    await asyncio.sleep(0)
    assert control.asked == asked
    assert not lost.done()
    lost.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lost


def test_refusing_and_dying_need_no_request_unless_they_are_counted(
    mishaps: Mishaps, control: Control
) -> None:
    mishaps.arm(Fault.parse("die"), count=1, path="/")
    assert control.asked == []
    mishaps.arm(Fault.parse("die"), count=None, path="/")
    mishaps.arm(Fault.parse("refuse:2"), count=None, path="/")
    assert control.asked == ["die", 2.0]
