"""What every built-in strategy must keep to, and the traps that real routers fell into."""

import ast
import dataclasses
import importlib
import inspect
import math
import subprocess
import sys
import textwrap
from collections import Counter
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import router
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import BUILT_IN, Candidate, Choice, FleetView
from router.core.request import EMPTY_CHAIN, Chain, Turn
from router.core.ring import Ring

EVERY = pytest.mark.parametrize("name", BUILT_IN)
FOLLOW_KV = ("priced", "prefix")
KEEP_TO_THE_RING = ("ring", "bounded-ring")


def strategy_class(name: str) -> Any:
    module, _, attribute = BUILT_IN[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def choose(name: str, turn: Turn, view: FleetView, seed: int = 0) -> Choice:
    return strategy_class(name)().choose(turn, view, Random(seed))


# --- views of any kind ------------------------------------------------------------------------------------

tokens = st.integers(0, 2_000_000)
NAMES = tuple(ReplicaId(f"r{i}") for i in range(6))
GONE = ReplicaId("gone")


@lru_cache(maxsize=64)
def ring_of(names: tuple[ReplicaId, ...], vnodes: int = 8) -> Ring:
    return Ring(names, vnodes)


@st.composite
def candidates(draw: st.DrawFn, name: ReplicaId) -> Candidate:
    return Candidate(
        replica=name,
        cached_tokens=draw(tokens),
        in_flight=draw(st.integers(0, 500)),
        pending_tokens=draw(tokens),
        working_set_tokens=draw(tokens),
        capacity_tokens=draw(st.none() | st.integers(1, 3_000_000)),
        foreign=draw(st.none() | st.floats(0, 1000)),
        recent_failures=draw(st.floats(0, 50)),
        placed_at=draw(st.floats(0, 1e9)),
        over=draw(st.sampled_from([None, None, "in flight", "kv usage"])),
    )


@st.composite
def views(draw: st.DrawFn) -> FleetView:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True).map(sorted))
    on_ring = draw(st.sampled_from([(*names, GONE), (GONE,), (), NAMES]))
    return FleetView(
        now=draw(st.floats(0, 1e9)),
        candidates=tuple(draw(candidates(name)) for name in names),
        home=draw(st.none() | st.sampled_from([*names, GONE])),
        prompt_tokens=draw(st.integers(0, 300_000)),
        ring=ring_of(tuple(sorted(set(on_ring)))),
        serial=draw(st.integers(0, 10**9)),
    )


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    session = draw(st.none() | st.sampled_from([SessionKey(f"s{i}") for i in range(20)]))
    chains = [EMPTY_CHAIN, Chain((1, 2, 3), (100, 5000, 9000), 2), Chain((1,), (7,), 1), Chain((1,), (0,), 1)]
    chain = draw(st.sampled_from(chains))
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, session, "", chain)


@EVERY
@settings(max_examples=80, deadline=None)
@given(turn=turns(), view=views(), seed=st.integers(0, 2**32))
def test_any_view_gets_one_of_its_candidates_by_a_sound_bill(name, turn, view, seed):
    choice = choose(name, turn, view, seed)
    assert any(choice.candidate is c for c in view.candidates)
    assert choice.reason == choice.reason.lower().strip() != ""
    if choice.prices is not None:
        assert len(choice.prices) == len(view.candidates)
        assert all(math.isfinite(price) and price >= 0 for price in choice.prices)


@EVERY
@settings(max_examples=80, deadline=None)
@given(turn=turns(), view=views())
def test_a_replica_over_a_limit_is_taken_only_when_all_are_and_the_reason_says_so(name, turn, view):
    choice = choose(name, turn, view)
    all_over = all(c.over is not None for c in view.candidates)
    assert (choice.candidate.over is not None) == all_over
    assert ("all over their limits" in choice.reason) == all_over


@EVERY
@settings(max_examples=40, deadline=None)
@given(
    turn=turns(), view=views(), others=st.lists(st.tuples(turns(), views()), max_size=3), seed=st.integers()
)
def test_the_same_seed_gives_the_same_choice_whatever_was_chosen_before(name, turn, view, others, seed):
    used = strategy_class(name)()
    before = used.choose(turn, view, Random(seed))
    for other_turn, other_view in others:
        used.choose(other_turn, other_view, Random(seed))
    assert used.choose(turn, view, Random(seed)) == before == choose(name, turn, view, seed)


@EVERY
@settings(max_examples=40, deadline=None)
@given(turn=turns(), view=views())
def test_the_inputs_stay_as_they_were(name, turn, view):
    def state() -> object:
        return (
            repr(turn),
            repr(view.replace(ring=ring_of(()))),
            view.ring.replicas,
            list(view.ring.order("s0")),
        )

    before = state()
    choose(name, turn, view)
    assert state() == before


@EVERY
@given(turn=turns(), one=candidates(ReplicaId("r0")))
@settings(max_examples=20, deadline=None)
def test_a_fleet_of_one_is_served(name, turn, one):
    view = FleetView(0.0, (one,), None, 100, ring_of((one.replica,)), 5)
    assert choose(name, turn, view).candidate is one


@EVERY
def test_absent_signals_are_handled(name):
    silent = tuple(Candidate(n, 0, 0, 0, 0, None, None, 0.0, 0.0, None) for n in NAMES)
    view = FleetView(0.0, silent, None, 0, ring_of(NAMES), 0)
    turn = Turn("/tokenize", "", OPEN_TENANT, None, "", EMPTY_CHAIN)
    assert choose(name, turn, view).candidate in silent


# --- parameters and documentation -------------------------------------------------------------------------


@EVERY
def test_parameters_refuse_unknown_keys(name):
    adapter = TypeAdapter(strategy_class(name).Params)
    with pytest.raises(ValidationError, match="no_such_parameter"):
        adapter.validate_json('{"no_such_parameter": 1}', strict=True)


@EVERY
def test_parameters_left_out_take_the_defaults_of_a_plain_constructor_call(name):
    params = strategy_class(name).Params
    assert TypeAdapter(params).validate_json("{}", strict=True) == params()
    strategy_class(name)(params())


@EVERY
def test_parameters_are_a_frozen_slotted_dataclass_that_forbids_extras(name):
    params = strategy_class(name).Params
    assert dataclasses.is_dataclass(params)
    assert params.__pydantic_config__ == {"extra": "forbid"}
    assert params.__dataclass_params__.frozen
    assert not hasattr(params(), "__dict__")
    assert all(field.kw_only for field in dataclasses.fields(params))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("priced", '{"relative": 1.2, "absolute": 40000}'),
        ("bounded-ring", '{"relative": 1.5, "absolute": 4}'),
        ("prefix", '{"relative": 1.5, "absolute": 4, "spread_tokens": 0, "min_share": 0, "min_tokens": 0}'),
    ],
)
def test_parameters_are_read_strictly_from_json_with_whole_numbers_for_floats(name, given):
    adapter = TypeAdapter(strategy_class(name).Params)
    adapter.validate_json(given, strict=True)
    with pytest.raises(ValidationError, match="relative"):
        adapter.validate_json('{"relative": "1.5"}', strict=True)
    with pytest.raises(ValidationError, match="relative is 0"):
        adapter.validate_json('{"relative": 0.5}', strict=True)


@EVERY
def test_the_class_and_each_parameter_are_documented(name):
    cls = strategy_class(name)
    # From the source: what is compiled has no docstrings.
    module = Path(router.__file__).parent.parent / (cls.__module__.replace(".", "/") + ".py")
    classes = [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.ClassDef)]
    assert next(ast.get_docstring(node) for node in classes if node.name == cls.__name__)
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls.Params))).body[0]
    assert isinstance(tree, ast.ClassDef)
    documented = {
        line.target.id
        for line, after in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
    assert documented == {field.name for field in dataclasses.fields(cls.Params)}


def test_all_can_be_imported_and_built_where_pydantic_cannot():
    script = f"""
        import importlib, sys

        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("pydantic", "pydantic_core"):
                    raise ImportError(name)

        sys.meta_path.insert(0, Refuse())
        for place in {sorted(BUILT_IN.values())!r}:
            module, _, attribute = place.partition(":")
            getattr(importlib.import_module(module), attribute)()
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=200)


# --- traps ------------------------------------------------------------------------------------------------


class Fleet:
    """Replicas, sessions and what lies where, kept as the engine would keep them."""

    def __init__(self, count: int = 4, *, shared_tokens: int = 0) -> None:
        self.names = [ReplicaId(f"r{i}") for i in range(count)]
        self.shared_tokens = shared_tokens
        self.now = 0.0
        self.serial = 0
        self.home: dict[SessionKey, ReplicaId] = {}
        self.tokens: dict[SessionKey, int] = {}
        self.holds: Counter[tuple[ReplicaId, SessionKey]] = Counter()
        self.shared_at: set[ReplicaId] = set()
        self.in_flight: Counter[ReplicaId] = Counter()
        self.pending: Counter[ReplicaId] = Counter()
        self.failures = dict.fromkeys(self.names, 0.0)
        self.placed_at: dict[ReplicaId, float] = {}
        self.over: dict[ReplicaId, str] = {}
        self.rng = Random(11)

    def turn(self, session: SessionKey, prompt: int) -> Turn:
        opening = min(prompt, self.shared_tokens + 200)
        return Turn(
            "/v1/chat/completions", "m", OPEN_TENANT, session, "x", Chain((1, 2), (opening, prompt), 1)
        )

    def view(self, session: SessionKey | None, prompt: int) -> FleetView:
        living: Counter[ReplicaId] = Counter()
        for key, home in self.home.items():
            living[home] += self.tokens[key]
        return FleetView(
            now=self.now,
            candidates=tuple(
                Candidate(
                    replica=name,
                    cached_tokens=0
                    if session is None
                    else max(self.holds[name, session], self.shared_tokens if name in self.shared_at else 0),
                    in_flight=self.in_flight[name],
                    pending_tokens=self.pending[name],
                    working_set_tokens=living[name],
                    capacity_tokens=None,
                    foreign=None,
                    recent_failures=self.failures.get(name, 0.0),
                    placed_at=self.placed_at.get(name, 0.0),
                    over=self.over.get(name),
                )
                for name in self.names
            ),
            home=None if session is None else self.home.get(session),
            prompt_tokens=prompt,
            ring=ring_of(tuple(self.names), 160),
            serial=self.serial,
        )

    def pick(self, strategy: Any, session: SessionKey, prompt: int) -> ReplicaId:
        """Choose, and note the placement, as the engine does at that moment."""
        choice = strategy.choose(self.turn(session, prompt), self.view(session, prompt), self.rng)
        self.serial += 1
        replica = choice.candidate.replica
        if session not in self.home:
            self.placed_at[replica] = self.now
        return replica

    def answered(self, session: SessionKey, replica: ReplicaId, prompt: int) -> None:
        self.home[session] = replica
        self.tokens[session] = self.holds[replica, session] = prompt
        self.shared_at.add(replica)

    def serve(self, strategy: Any, session: SessionKey, prompt: int) -> ReplicaId:
        """A paced turn: chosen with nothing in flight, and over before the next."""
        self.now += 1.0
        replica = self.pick(strategy, session, prompt)
        self.answered(session, replica, prompt)
        return replica


def sessions(count: int) -> list[SessionKey]:
    return [SessionKey(f"session-{i}") for i in range(count)]


def assert_even(picked: Counter[ReplicaId], names: list[ReplicaId], *, within: float = 0.35) -> None:
    """Each of the replicas got its part, give or take `within` of it."""
    part = picked.total() / len(names)
    assert all(abs(picked[name] - part) <= within * part for name in names), dict(picked)


@EVERY
def test_an_idle_fleet_spreads_paced_sessions(name):
    fleet, strategy = Fleet(), strategy_class(name)()
    picked = Counter(fleet.serve(strategy, s, 3000) for s in sessions(400))
    assert_even(picked, fleet.names)


@EVERY
def test_an_idle_fleet_spreads_paced_turns_that_have_no_session(name):
    fleet, strategy = Fleet(), strategy_class(name)()
    fleet.answered(SessionKey("lives here"), fleet.names[0], 50_000)
    bare = Turn("/tokenize", "", OPEN_TENANT, None, "", EMPTY_CHAIN)
    picked = Counter(
        strategy.choose(bare, fleet.view(None, 0).replace(serial=n), fleet.rng).candidate.replica
        for n in range(400)
    )
    assert_even(picked, fleet.names)


@EVERY
def test_a_shared_system_prompt_does_not_gather_paced_sessions_on_one_replica(name):
    fleet, strategy = Fleet(shared_tokens=6000), strategy_class(name)()
    fleet.shared_at.add(fleet.names[0])
    picked = Counter(fleet.serve(strategy, s, 6500) for s in sessions(400))
    assert_even(picked, fleet.names)
    if name in FOLLOW_KV:
        # And it is no reason to leave home later.
        homes = dict(fleet.home)
        assert {s: fleet.serve(strategy, s, 7500) for s in sessions(400)} == homes


@EVERY
def test_a_shared_system_prompt_does_not_gather_what_a_lost_home_leaves_behind(name):
    fleet, strategy = Fleet(5, shared_tokens=6000), strategy_class(name)()
    lost = ReplicaId("r4")
    orphans = sessions(200)
    for session in orphans:
        fleet.answered(session, lost, 6500)
    fleet.names.remove(lost)
    fleet.shared_at = {fleet.names[0]}
    picked = Counter(fleet.serve(strategy, s, 7500) for s in orphans)
    assert_even(picked, fleet.names)


@EVERY
@pytest.mark.parametrize("shared_tokens", [0, 2500])
def test_a_burst_of_new_sessions_counts_at_the_choice_and_does_not_herd(name, shared_tokens):
    fleet, strategy = Fleet(shared_tokens=shared_tokens), strategy_class(name)()
    fleet.shared_at.add(fleet.names[0])
    picked: Counter[ReplicaId] = Counter()
    for session in sessions(200):
        replica = fleet.pick(strategy, session, 3000)
        fleet.in_flight[replica] += 1
        fleet.pending[replica] += 3000
        picked[replica] += 1
    assert_even(picked, fleet.names)


@pytest.mark.parametrize("name", FOLLOW_KV)
def test_a_burst_does_not_herd_onto_the_one_replica_that_is_empty(name):
    fleet, strategy = Fleet(), strategy_class(name)()
    for n in range(3):
        fleet.answered(SessionKey(f"old-{n}"), fleet.names[n], 400_000)
    picked: Counter[ReplicaId] = Counter()
    for session in sessions(400):
        replica = fleet.pick(strategy, session, 3000)
        fleet.in_flight[replica] += 1
        fleet.pending[replica] += 3000
        picked[replica] += 1
    # It takes what brings it level with the others, 400,000 tokens, and its part of the rest.
    assert picked[fleet.names[3]] <= 400_000 / 3000 + 0.4 * (400 - 400_000 / 3000)


@pytest.mark.parametrize("name", [*FOLLOW_KV, *KEEP_TO_THE_RING])
@pytest.mark.parametrize("how", ["over a limit", "many in flight"])
def test_one_overloaded_replica_does_not_end_affinity_for_the_rest(name, how):
    fleet, strategy = Fleet(), strategy_class(name)()
    before = {s: fleet.serve(strategy, s, 3000) for s in sessions(100)}
    hot = fleet.names[0]
    if how == "over a limit":
        fleet.over[hot] = "in flight"
    else:
        fleet.in_flight[hot] = 500
    after = {s: fleet.pick(strategy, s, 4000) for s in sessions(100)}
    assert all(after[s] == before[s] for s in after if before[s] != hot)
    if how == "over a limit":
        assert hot not in after.values()


@EVERY
def test_a_replica_that_fails_fast_draws_no_more_than_its_part(name):
    fleet, strategy = Fleet(), strategy_class(name)()
    failing, step_s = fleet.names[0], 0.02
    running: list[tuple[float, ReplicaId]] = []
    picked: Counter[ReplicaId] = Counter()
    for session in sessions(800):
        fleet.now += step_s
        fleet.failures[failing] *= 0.5 ** (step_s / 10.0)
        while running and running[0][0] <= fleet.now:
            fleet.in_flight[running.pop(0)[1]] -= 1
        replica = fleet.pick(strategy, session, 3000)
        picked[replica] += 1
        if replica == failing:
            fleet.failures[failing] += 1
        else:
            fleet.in_flight[replica] += 1
            running.append((fleet.now + 1.0, replica))
            fleet.answered(session, replica, 3000)
    assert picked[failing] <= 1.35 * 800 / 4
    if name in ("least-loaded", "two-choices"):
        assert picked[failing] <= 0.1 * 800 / 4


def test_adding_a_replica_moves_no_session_that_has_a_home_under_priced():
    fleet, strategy = Fleet(), strategy_class("priced")()
    homes = {s: fleet.serve(strategy, s, 3000) for s in sessions(200)}
    fleet.names.append(ReplicaId("r9"))
    assert {s: fleet.serve(strategy, s, 3500) for s in sessions(200)} == homes
    newcomers = [SessionKey(f"later-{i}") for i in range(200)]
    assert ReplicaId("r9") in {fleet.serve(strategy, s, 3000) for s in newcomers}


def test_adding_a_replica_moves_no_session_under_prefix():
    fleet, strategy = Fleet(), strategy_class("prefix")()
    homes = {s: fleet.serve(strategy, s, 3000) for s in sessions(200)}
    fleet.names.append(ReplicaId("r9"))
    assert {s: fleet.serve(strategy, s, 3500) for s in sessions(200)} == homes


@pytest.mark.parametrize("name", KEEP_TO_THE_RING)
def test_adding_a_replica_moves_only_the_sessions_that_the_ring_gives_to_it(name):
    fleet, strategy = Fleet(), strategy_class(name)()
    before = {s: fleet.serve(strategy, s, 3000) for s in sessions(400)}
    new = ReplicaId("r9")
    fleet.names.append(new)
    after = {s: fleet.serve(strategy, s, 3000) for s in sessions(400)}
    moved = {s for s in after if after[s] != before[s]}
    assert {after[s] for s in moved} == {new}
    assert 0.5 * 400 / 5 <= len(moved) <= 1.5 * 400 / 5
