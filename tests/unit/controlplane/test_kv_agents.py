"""Listening to real agents: what is heard of them, and what of those that are not what they should be."""

from random import Random

import pytest
from support.kv import NAMESPACE, SECRET, chain
from support.kv_fleet import Fleet, until

from router.base.clock import SystemClock
from router.base.ids import ReplicaId, SessionKey
from router.controlplane.kv_agents import AgentAddress, KvAgents
from router.core.holdings import AgentReport

A = ReplicaId("a")


class Told:
    def __init__(self):
        self.reports: list[AgentReport] = []
        self.lost: list[bool] = []

    def agent_reported(self, name, report, now):
        assert name == A
        self.reports.append(report)

    def agent_lost(self, name, restarted, now):
        assert name == A
        self.lost.append(restarted)


@pytest.fixture
async def kv():
    fleet = Fleet()
    yield fleet
    await fleet.close()


def listener(told, *, secret=SECRET):
    return KvAgents(told, SystemClock(), Random(1), secret=secret)


def at(agent):
    return {A: AgentAddress("127.0.0.1", agent.server.port)}


async def test_what_an_agent_holds_is_heard_and_then_what_changes(kv):
    agent = await kv.agent("a")
    engine = await kv.engine(agent)
    await engine.save(chain("x", 4), session="s")
    told = Told()
    agents = listener(told)
    agents.set_agents(at(agent))
    await until(lambda: told.reports)
    first = told.reports[0]
    assert first.complete
    assert dict(first.held) == {SessionKey("s"): 4 * NAMESPACE.block_size}
    assert first.tokens == 4 * NAMESPACE.block_size
    assert first.capacity_tokens == 64 * NAMESPACE.block_size
    assert first.token_bytes == NAMESPACE.block_bytes / NAMESPACE.block_size
    assert agents.faults() == {A: ""}
    await engine.save(chain("y", 2), session="t")
    await until(lambda: any(SessionKey("t") in dict(report.held) for report in told.reports[1:]))
    assert not told.reports[-1].complete
    await agents.close()


async def test_a_released_session_is_gone(kv):
    agent = await kv.agent("a")
    engine = await kv.engine(agent)
    await engine.save(chain("x", 4), session="s")
    told = Told()
    agents = listener(told)
    agents.set_agents(at(agent))
    await until(lambda: told.reports)
    agents.release("t", SessionKey("s"), [A, ReplicaId("unknown")])
    await until(lambda: any(SessionKey("s") in report.gone for report in told.reports))
    await agents.close()


async def test_an_agent_that_stops_is_lost_and_one_that_starts_anew_has_restarted(kv):
    agent = await kv.agent("a")
    port = agent.server.port
    told = Told()
    agents = listener(told)
    agents.set_agents(at(agent))
    await until(lambda: told.reports)
    await agent.close()
    await until(lambda: told.lost == [False])
    assert agents.faults()[A] != ""
    heard = len(told.reports)
    again = await kv.agent("a", port=port)
    await until(lambda: len(told.reports) > heard, within=8)
    assert told.lost == [False, True]
    assert again.server.port == port
    await agents.close()


async def test_a_stranger_is_not_heard(kv):
    told = Told()
    other = await kv.agent("someone-else")
    agents = listener(told)
    agents.set_agents(at(other))
    await until(lambda: "calls itself" in agents.faults()[A])
    wrong = listener(told, secret=b"another secret, as long as it is")
    wrong.set_agents(at(other))
    await until(lambda: wrong.faults()[A] != "")
    assert told.reports == []
    await agents.close()
    await wrong.close()


async def test_one_that_is_not_there_is_asked_again_and_wishes_of_it_end(kv):
    told = Told()
    agents = listener(told)
    agents.set_agents({A: AgentAddress("127.0.0.1", 1)})
    await until(lambda: agents.faults()[A] != "")
    fetched = await agents.prefetch(A, "", SessionKey("s"), (ReplicaId("b"),), 1.0)
    assert fetched == (0, 0, "lost")
    agents.set_agents({})
    assert agents.faults() == {}
    await agents.close()
