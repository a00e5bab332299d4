"""Where a request would go: answered by what a data plane goes by, and nothing is changed."""

import json

import pytest

from router.base.clock import SystemClock
from router.base.errors import ErrorKind, Refused
from router.core.chain_watch import ChainWatch
from router.core.plan import Plan
from router.core.strategies.priced import Priced
from router.dataplane.limits import Limits
from router.dataplane.routing import Routing
from router.dataplane.server import DataPlane
from router.questions import Questions
from router.settings.access import AccessKeys
from router.settings.routes import RouteTable
from tests.support.turns import engine

PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()


def asked(*names: str, keys: AccessKeys | None = None) -> Questions:
    plan, clock = Plan(name="home", strategy=Priced()), SystemClock()
    of = engine(*names, plan=plan)
    routing = Routing([plan], RouteTable(()), secret=b"s")
    plane = DataPlane(of, routing, clock=clock, limits=Limits(), access=keys)
    return Questions(of, plane, ChainWatch(), clock, lambda: keys)


def test_the_decision_comes_with_its_bill_and_changes_nothing() -> None:
    of = asked("a")
    first = of.explain(PATH, BODY, "s1")
    assert (first["replica"], first["kind"], first["model"], first["session_source"]) == (
        "a",
        "new",
        "m",
        "x-session-id",
    )
    assert first["break"] is None
    again = of.explain(PATH, BODY, "s1")
    assert {**again, "at": None} == {**first, "at": None}


def test_what_would_be_refused_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        asked().explain(PATH, BODY)
    assert refused.value.kind is ErrorKind.NO_REPLICAS


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/foo", "no endpoint /foo"),
        ("/v1/chat/completions/", "leave out the slash"),
        ("/v1/load_lora_adapter", "is not relayed"),
        ("/health", "can only be read"),
    ],
)
def test_what_is_not_relayed_goes_nowhere(path: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        asked("a").explain(path, BODY, "s1")


def test_a_tenant_is_one_of_those_that_there_are() -> None:
    of = asked("a", keys=AccessKeys([(b"d" * 32, "acme")]))  # type: ignore[list-item]
    assert of.explain(PATH, BODY, "s1", "acme")["session"] != of.explain(PATH, BODY, "s1")["session"]
    with pytest.raises(Refused, match="no API key names the tenant 'other'"):
        of.explain(PATH, BODY, "s1", "other")
