"""The connector between an engine and an agent that come, go, abort, preempt, stall and lie in any order.

Whatever happens: every request ends, every load is reported once, all blocks are free afterwards, and no
block ever holds anything but what its name says.
"""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.little_engine import LittleEngine


class ConnectorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.engine = LittleEngine()
        self.count = 0
        self.agent_reserves_slots(count=8)

    @rule(
        family=st.integers(0, 1),
        prompt=st.integers(1, 8),
        local=st.integers(0, 4),
        output=st.integers(0, 3),
        answer=st.none() | st.integers(2, 8),
    )
    def request_arrives(self, family: int, prompt: int, local: int, output: int, answer: int | None) -> None:
        if len(self.engine.requests) < 6:
            self.count += 1
            self.engine.add(f"r{self.count}", family, prompt, local, output)
            if answer is not None:
                self.engine.agent.say(f"r{self.count}", answer)
                self.engine.step()

    @rule(steps=st.integers(1, 4))
    def engine_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @rule(pick=st.integers(0, 5))
    def client_leaves(self, pick: int) -> None:
        living = [one.name for one in self.engine.requests.values() if one.state != "aborted"]
        if living:
            self.engine.abort(living[pick % len(living)])

    @rule(pick=st.integers(0, 5))
    def engine_preempts(self, pick: int) -> None:
        running = [one.name for one in self.engine.requests.values() if one.state == "running"]
        if running:
            self.engine.preempt(running[pick % len(running)])

    @rule(pick=st.integers(0, 5), blocks=st.integers(0, 8))
    def agent_answers(self, pick: int, blocks: int) -> None:
        asked = list(self.engine.agent.asked)
        if asked:
            self.engine.agent.say(asked[pick % len(asked)], blocks)

    @rule(blocks=st.integers(1, 8))
    def blocks_land(self, blocks: int) -> None:
        for load in self.engine.agent.loads.values():
            self.engine.agent.land(load, blocks)

    @rule(pick=st.integers(0, 5))
    def load_is_done(self, pick: int) -> None:
        loads = [load for load in self.engine.agent.loads.values() if load.end is None]
        if loads:
            load = loads[pick % len(loads)]
            self.engine.agent.land(load, 8)
            load.end = load.end or "done"
            self.engine.step()

    @rule(
        pick=st.integers(0, 5),
        reason=st.sampled_from(["stall", "deadline", "source", "damaged", "cancelled"]),
    )
    def load_ends(self, pick: int, reason: str) -> None:
        loads = list(self.engine.agent.loads.values())
        if loads:
            load = loads[pick % len(loads)]
            load.end = load.end or reason

    @rule(count=st.integers(1, 8))
    def agent_reserves_slots(self, count: int) -> None:
        agent = self.engine.agent
        if agent.connected:
            agent.reserved += [handle for _ in range(count) if (handle := agent.arena.put(b"\0" * 32))]

    @rule(pick=st.integers(0, 5))
    def slot_is_given_away(self, pick: int) -> None:
        loads = [load for load in self.engine.agent.loads.values() if load.handles]
        if loads:
            load = loads[pick % len(loads)]
            self.engine.agent.arena.give_back(load.handles[pick % len(load.handles)])

    @rule(event=st.sampled_from(["lives", "lives", "lives", "dies", "hangs", "hangs"]))
    def agent_changes(self, event: str) -> None:
        if event == "dies":
            self.engine.agent.die()
        else:
            self.engine.agent.connected = event == "lives"

    @rule(are_slow=st.booleans())
    def copies_take_time(self, are_slow: bool) -> None:
        self.engine.complete_copies()
        self.engine.slow = [] if are_slow else None

    @rule(seconds=st.floats(0.01, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.engine.now += seconds

    @invariant()
    def no_block_is_lost_or_given_twice(self) -> None:
        used = [block for one in self.engine.requests.values() for block in one.block_ids]
        assert sorted(used + self.engine.free) == list(range(1, self.engine.total + 1))

    def teardown(self) -> None:
        engine = self.engine
        engine.complete_copies()
        engine.slow = None
        for _ in range(400):
            if not engine.requests:
                break
            engine.now += 0.05
            for request in list(engine.agent.asked):
                engine.agent.say(request, 0)
            engine.step()
        assert not engine.requests, f"stuck: {engine.requests}"
        assert len(engine.free) == engine.total
        assert not engine.agent.asked
        figures = engine.counting.take() or {}
        assert not [key for key in figures if key.startswith("faults")], figures


ConnectorMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
# Two hundred lives of forty steps: seconds where the machine is free, much more where it is not.
TestConnectorMachine = pytest.mark.timeout(600)(ConnectorMachine.TestCase)
