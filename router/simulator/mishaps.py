"""What befalls requests at a simulated replica: which fault, and what it does beside the answer.

Which faults there are, and when each is due, is in `faults`. What one does to a body is done where that is
sent.
"""

from typing import Final, Protocol

from aiohttp import web

from router.base.errors import HomingError
from router.simulator.calls import Call, abort, never
from router.simulator.faults import Fault, FaultPlan, Kind
from router.simulator.refusals import Refusal, error_answer

_GARBAGE: Final = b"\x16\x03\x01\x00\xa5 this is no HTTP\r\n\r\n"


class Control(Protocol):
    """What the API can ask of whoever runs it."""

    def refuse(self, seconds: float) -> None:
        """Stop accepting connections for a time."""
        ...

    def die(self) -> None:
        """End at once, as a process that is killed does."""
        ...


class Mishaps:
    """Carries out what is planned, and what requests ask for themselves."""

    def __init__(self, plan: FaultPlan, control: Control) -> None:
        self._plan = plan
        self._control = control

    def of(self, request: web.Request) -> Fault | None:
        """What is to happen to a request, by its own header or by plan. Raises `Refusal`."""
        asked = request.headers.get("X-Sim-Fault")
        if asked is None:
            return self._plan.take(request.path)
        try:
            return Fault.parse(asked)
        except HomingError as error:
            raise Refusal(400, str(error)) from None

    async def befall(self, call: Call, fault: Fault) -> web.Response | None:
        """Carry a fault out. `None` where the request is answered, and only its body suffers."""
        transport = call.request.transport
        match fault.kind:
            case Kind.CUT | Kind.SLOW:
                call.fault = fault
                return None
            case Kind.HOLD:
                await self._plan.cleared()
                return None
            case Kind.STATUS:
                status = int(fault.amount)
                answer = error_answer(
                    call.record.path, Refusal(status, f"simulated {status}", kind="SimulatedError")
                )
                if fault.retry_after is not None:
                    answer.headers["Retry-After"] = fault.retry_after
                return answer
            case Kind.REFUSE:
                self._control.refuse(fault.amount)
                abort(transport)
            case Kind.DIE:
                self._control.die()
            case Kind.CLOSE:
                abort(transport)
            case Kind.GARBAGE:
                if transport is not None:
                    transport.write(_GARBAGE)
                    transport.close()
            case Kind.HANG:
                pass
        return await never()

    def arm(self, fault: Fault, *, count: int | None, path: str) -> None:
        """Put a fault in force. `refuse` and `die` without a count need no request and happen at once."""
        if count is None and fault.kind is Kind.REFUSE:
            self._control.refuse(fault.amount)
        elif count is None and fault.kind is Kind.DIE:
            self._control.die()
        else:
            self._plan.arm(fault, count=count, path=path)
