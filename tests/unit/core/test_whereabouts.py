"""Where what of a session lies."""

from random import Random

from router.base.ids import ReplicaId, SessionKey
from router.core.engine import Engine
from router.core.fleet import Resident
from router.core.holdings import AgentReport, Holdings
from router.core.plan import Plan, PullRules
from router.core.pullbook import PullBook
from router.core.residency import Residency
from router.core.strategies.priced import Priced
from tests.support.turns import A, B, specs


def test_whereabouts_are_what_replicas_and_agents_say() -> None:
    holdings = Holdings(pools=[ReplicaId("pool")])
    of = Engine(
        [Plan(name="home", strategy=Priced())],
        rng=Random(1),
        pullbook=PullBook(PullRules()),
        holdings=holdings,
    )
    of.set_replicas(specs("a", "b"), 0.0)
    key = SessionKey("0123456789abcdef" * 2)
    assert of.whereabouts(key) == []
    residency = Residency()
    residency.stored([1, 2, 3], None, 16, key)
    of.follow(A, residency)
    of.agent_reported(B, AgentReport(True, ((key, 96),), (), 96), 0.0)
    of.agent_reported(ReplicaId("pool"), AgentReport(True, ((key, 32),), (), 32), 0.0)
    expected = [
        Resident(B, 96, "agent"),
        Resident(A, 48, "events"),
        Resident(ReplicaId("pool"), 32, "agent"),
    ]
    assert of.whereabouts(key) == expected
    # The longer key, which names a model, is of the same session.
    assert of.whereabouts(SessionKey(key + "f" * 16)) == expected
