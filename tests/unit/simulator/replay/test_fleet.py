"""A policy in virtual time: exact values where they can be worked out, and that nothing depends on luck."""

import dataclasses
from pathlib import Path
from random import Random

import pytest

from router.core.plan import Overload, Plan
from router.core.strategies.ring import RingOnly
from router.core.strategies.round_robin import RoundRobin
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.events import parse_event
from router.simulator.replay.figures import figures
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.reading import read_trace
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

SMALL = Path(__file__).parents[3] / "data" / "small-trace.jsonl"
RING = Plan(name="ring", strategy=RingOnly())


def settings(**other):
    given = {"block_size": 64, "kv_blocks": 1001, "prefill_tps": 1000.0, "decode_tps": 50.0}
    return ReplicaSettings(max_model_len=10**9, **(given | other))


def play(trace, plan=RING, *, replicas=1, selection=None, seed=0, **replica):
    held = settings(**replica)
    workload = choose(trace, selection or Selection(seed=seed), held.context_tokens)
    return FleetReplay(plan, workload, held, replicas=replicas, seed=seed)


def test_a_turn_alone_waits_for_its_prefill_and_the_next_for_what_is_new(make):
    # 1,000 tokens at 1,000 a second; 11 tokens at 50 a second, the first of them with the prefill's end.
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0), (1200, 15, 11, 5.0)))
    measured = play(trace).run()
    # 15 full blocks, 960 tokens, are there; the answer's 11 do not fill the 16th.
    assert measured.ttft_s == pytest.approx([1.0, 0.24])
    assert measured.session_s == pytest.approx([1.0 + 0.2 + 5.0 + 0.24 + 0.2])
    assert (measured.prompt_tokens, measured.cached_tokens) == (2200, 960)
    assert measured.prefilled == [1240]
    assert measured.kinds == {"new": 1, "home": 1}
    assert (measured.moves, measured.refused) == (0, 0)


def test_the_answers_tokens_are_cached_too(make):
    trace = make.trace(make.session("s", (960, 0, 129, 0.0), (1200, 15, 1, 0.0)))
    assert play(trace).run().cached_tokens == 960 + 128


def test_what_does_not_fit_the_device_is_read_back_from_the_host(make):
    first = make.session("a", (640, 0, 1, 0.0), (704, 10, 1, 20.0))
    between = make.session("b", (640, 0, 1, 0.0), at=5.0)
    small = {"kv_blocks": 16, "kv_bytes_per_token": 1_000_000, "host_gbps": 8.0}
    cold = play(make.trace(first, between), **small).run()
    warm = play(make.trace(first, between), host_kv_blocks=100, **small).run()
    # The other session took 5 of the first one's 10 blocks, from their end.
    assert cold.ttft_s == pytest.approx([0.64, 0.64, 0.384])
    assert warm.ttft_s[2] == pytest.approx(0.064 + 5 * 64 / 1000), "the rest comes at 1,000 tokens a second"
    assert (cold.cached_tokens, warm.cached_tokens) == (320, 640)


def test_a_session_that_is_sent_around_moves_and_computes_again(make):
    trace = make.trace(make.session("s", *[(640, 0, 1, 0.0)] * 4))
    measured = play(trace, Plan(name="round", strategy=RoundRobin()), replicas=2).run()
    assert measured.kinds == {"new": 1, "spill": 3}
    assert measured.moves == 3
    assert measured.prefilled == [1280, 1280]


def test_a_refused_turn_ends_its_session_and_is_not_counted_as_fast(make):
    plan = Plan(name="tight", strategy=RingOnly(), overload=Overload(in_flight=1))
    agent = make.agent(0.1, 1, make.session("late/a", (64, 0, 1, 0.0)))
    trace = make.trace(
        make.session("first", (1000, 0, 11, 0.0), (1000, 0, 1, 0.0)),
        make.session("late", (64, 0, 1, 0.0), (64, 0, 1, 0.0), at=0.5, agents=[agent]),
    )
    measured = play(trace, plan).run()
    assert measured.refused == 1
    assert measured.ttft_s == pytest.approx([1.0, 1.0])
    assert len(measured.session_s) == 1


def test_a_sub_agent_runs_beside_its_parent_and_is_no_session_of_its_own_in_the_figures(make):
    agent = make.agent(4.0, 1, make.session("s/a", (500, 0, 1, 0.0)))
    trace = make.trace(make.session("s", (1000, 0, 1, 0.0), agents=[agent]))
    measured = play(trace).run()
    assert measured.ttft_s == pytest.approx([1.0, 0.5])
    assert measured.session_s == pytest.approx([1.0])
    assert measured.kinds["new"] == 2


def test_turns_that_come_at_once_share_the_replica(make):
    trace = make.trace(*(make.session(name, (1000, 0, 1, 0.0)) for name in "ab"))
    # One step holds both prompts, so both first tokens come at its end.
    assert play(trace).run().ttft_s == pytest.approx([2.0, 2.0])
    assert play(trace, batch_tokens=1000).run().ttft_s == pytest.approx([1.0, 2.0])


def test_the_engine_learns_what_a_live_one_does(make, monkeypatch):
    trace = make.trace(make.session("s", (1000, 0, 100, 0.0), (1280, 15, 11, 2.5)))
    replay = play(trace, replicas=2)
    seen = []
    report = replay._engine.report
    monkeypatch.setattr(
        replay._engine,
        "report",
        lambda replica, what, now: (seen.append((now, replica, what)), report(replica, what, now)),
    )
    replay.run()
    engine = replay._engine
    assert engine.in_flight() == 0
    (session,) = engine.sessions(5)
    assert session.resident_tokens == 1280 + 11
    home, other = sorted(engine.replicas(1e6), key=lambda status: status.id != session.home)
    assert (home.pending_tokens, home.health, home.capacity_tokens) == (0, "healthy", 64_000)
    assert home.models == ("sim-model",)
    assert home.working_set_tokens == 1291
    looks = [(now, what.running) for now, replica, what in seen if replica == home.id]
    # The first turn runs from 0 to 2.98, the second from 5.48 to 5.87. The last look of each shows the
    # replica idle, after which there is none until the next turn.
    busy_at = {"r0": [1.0, 2.0], "r1": [0.5, 1.5, 2.5, 5.5]}[home.id]
    idle_at = {"r0": [3.0, 6.0], "r1": [3.5, 6.5]}[home.id]
    assert looks == sorted([*((at, 1.0) for at in busy_at), *((at, 0.0) for at in idle_at)])
    assert not [what for _, replica, what in seen if replica == other.id]


def test_a_prediction_is_what_the_replica_then_finds(make, monkeypatch):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0), (1200, 15, 11, 5.0), (1500, 18, 1, 5.0)))
    replay = play(trace)
    decisions = []
    admit = replay._engine.admit

    def noting(turn, now, **more):
        ticket = admit(turn, now, **more)
        decisions.append(ticket.decision)
        return ticket

    monkeypatch.setattr(replay._engine, "admit", noting)
    replay.run()
    # The router counts in tokens, the replica in full blocks of 64.
    assert [decision.prompt_tokens for decision in decisions] == [1000, 1200, 1500]
    assert [decision.cached_tokens for decision in decisions] == [0, 1011, 1211]


def test_the_router_hears_nothing_of_a_step_that_ends_within_a_prompt(make, monkeypatch):
    sessions = [make.session(name, (100_032, 0, 1, 0.0), at=at) for name, at in (("a", 0.0), ("b", 0.5))]
    replay = play_home(make.trace(*sessions), replicas=1)
    looked = []
    dispatch = replay._engine.dispatch
    monkeypatch.setattr(replay._engine, "dispatch", lambda now: (looked.append(now), dispatch(now))[1])
    assert len(replay.run().ttft_s) == 2
    # While one is held: a look at the metrics each second, and the first token of the other.
    assert len(looked) <= 12
    assert not [at for at in looked for step in range(1, 12) if abs(at - 0.8192 * step) < 1e-6]


@pytest.mark.parametrize("policy", ["two-choices", "home"])
def test_the_same_seed_gives_the_same_turns_and_another_seed_others(policy):
    plan = build_plan(load_policy(policy).value)

    def run(seed):
        selection = Selection(rate=0.5, seed=seed)
        return play(read_trace(SMALL), plan, replicas=3, selection=selection, seed=seed, kv_blocks=400).run()

    assert run(3) == run(3)
    assert run(3).ttft_s != run(4).ttft_s


@pytest.mark.parametrize("policy", ["home", "round-robin"])
def test_every_turn_is_answered_under_pressure(policy):
    trace = read_trace(SMALL)
    turns = sum(
        len(session.turns) + sum(len(agent.session.turns) for agent in session.agents)
        for session in trace.sessions
    )
    replay = play(
        trace,
        build_plan(load_policy(policy).value),
        replicas=2,
        kv_blocks=500,
        host_kv_blocks=300,
        max_num_seqs=4,
        batch_tokens=512,
    )
    measured = replay.run()
    assert len(measured.ttft_s) == turns == sum(measured.kinds.values())
    assert len(measured.session_s) == len(trace.sessions)
    assert replay._engine.in_flight() == 0
    assert min(measured.ttft_s) > 0


def test_a_fan_out_from_one_parent_computes_the_shared_prompt_once_a_replica(make):
    """Forty sub-agents, two a second, of which each goes on from their parent's 20,480 tokens."""
    parent = make.session("p", (20_480, 0, 10, 0.0))
    shared = parent.turns[0].fresh
    agents = []
    for number in range(40):
        own = make.session(f"p/{number}", (640, 0, 10, 0.0), (1280, 10, 10, 1.0))
        first, second = own.turns
        turns = (
            first._replace(prompt_tokens=21_120, fresh=shared + first.fresh),
            second._replace(prompt_tokens=21_760, kept=330),
        )
        agents.append(make.agent(10.0 + number / 2, 1, dataclasses.replace(own, turns=turns)))
    trace = make.trace(dataclasses.replace(parent, agents=tuple(agents)))
    home = build_plan(load_policy("home").value)
    replica = {"replicas": 4, "prefill_tps": 8000.0, "kv_blocks": 10_000}
    together = play(trace, home, **replica).run()
    apart = play(trace, Plan(name="round-robin", strategy=RoundRobin()), **replica).run()
    assert len(together.ttft_s) == len(apart.ttft_s) == 81
    # The parent's, once a replica at most, 1,280 tokens of each sub-agent's own, and half of them again where
    # one moves for its second turn.
    assert sum(together.prefilled) <= 4 * 20_480 + 40 * 1_280 + together.moves * 640
    assert together.moves <= 4
    assert len([tokens for tokens in together.prefilled if tokens > 5000]) >= 3, "it does spread"
    assert sum(together.ttft_s) < sum(apart.ttft_s)


def crowded(make, seed):
    """Twenty-four sessions of 20 turns, one every two seconds: more than three small replicas hold."""
    chance = Random(seed)
    sessions = []
    for number in range(24):
        tokens, kept, turns = chance.randrange(4000, 24_000), 0, []
        for _ in range(20):
            output, think = int(chance.expovariate(1 / 60)) + 10, chance.choice((2.0, 5.0, 5.0, 20.0))
            turns.append((tokens, kept, output, think))
            kept = tokens // 64
            tokens += chance.randrange(100, 1500)
        sessions.append(make.session(f"s{number}", *turns, at=2.0 * number))
    return make.trace(*sessions)


def test_where_more_is_alive_than_fits_sessions_that_leave_home_do_not_push_out_those_that_stay(make):
    plan = build_plan(load_policy("home").value)
    small = {"kv_blocks": 938, "host_kv_blocks": 1562, "prefill_tps": 4000.0}
    hit_rates, moves = [], 0
    for seed in range(5):
        measured = play(crowded(make, seed), plan, replicas=3, seed=seed, **small).run()
        hit_rates.append(measured.cached_tokens / measured.prompt_tokens)
        moves += measured.moves
    # 0.731, with 238 moves. Where what a session leaves behind has no price, and what a turn takes the place
    # of is no work, it is 0.719, with 313.
    assert sum(hit_rates) / 5 > 0.725
    assert moves < 275


# --- pulls, and changes of the fleet ----------------------------------------------------------------------


def play_home(trace, *, replicas=2, pull_gbps=0.0, gateway_tokens=0, events=(), **replica):
    held = settings(**({"prefill_tps": 10_000.0, "kv_blocks": 10_000} | replica))
    workload = choose(trace, Selection(), held.context_tokens)
    plan = build_plan(load_policy("home").value)
    return FleetReplay(
        plan,
        workload,
        held,
        replicas=replicas,
        seed=0,
        pull_gbps=pull_gbps,
        gateway_tokens=gateway_tokens,
        events=[parse_event(text) for text in events],
    )


def test_a_session_whose_home_is_drained_has_its_kv_pulled(make):
    trace = make.trace(make.session("s", (100_032, 0, 1, 0.0), (100_672, 1563, 1, 60.0)))
    (home,) = (f"r{at}" for at, tokens in enumerate(play_home(trace).run().prefilled) if tokens)
    drained = [f"drain:{home}@30s"]
    computed = play_home(trace, events=drained).run()
    pulled = play_home(trace, events=drained, pull_gbps=96.0).run()
    assert computed.kinds == {"new": 1, "failover": 1}
    assert computed.ttft_s[1] == pytest.approx(10.07, rel=0.01)
    # 16.4 GB at 12 GB/s, from the host at 50, and 640 tokens.
    assert pulled.ttft_s[1] == pytest.approx(1.37 + 0.33 + 0.06, rel=0.05)
    assert pulled.pulled_tokens == 100_032
    assert pulled.cached_tokens == 100_032


def test_a_pull_over_a_path_that_turns_out_slow_ends_at_its_deadline_and_the_rest_is_computed(make):
    trace = make.trace(make.session("s", (100_032, 0, 1, 0.0), (100_672, 1563, 1, 60.0)))
    (home,) = (f"r{at}" for at, tokens in enumerate(play_home(trace).run().prefilled) if tokens)
    slow = play_home(trace, events=[f"drain:{home}@30s"], pull_gbps=2.5).run()
    # Expected at 25 Gb/s; the time that computing takes is the most it may take.
    assert 10.0 < slow.ttft_s[1] < 20.5
    assert 0 < slow.pulled_tokens < 60_000


def test_turns_whose_replica_dies_are_asked_again_and_wait_from_the_first_time(make):
    trace = make.trace(make.session("s", (100_032, 0, 1, 0.0), (100_672, 1563, 1, 5.0)))
    (home,) = (f"r{at}" for at, tokens in enumerate(play_home(trace).run().prefilled) if tokens)
    killed = play_home(trace, events=[f"kill:{home}@4s", f"start:{home}@20s"]).run()
    assert killed.died == 1
    assert killed.refused == 0
    assert killed.ttft_s[0] == pytest.approx(4.0 + 1.0 + 10.0, rel=0.01)
    assert len(killed.session_s) == 1


def test_what_a_replica_had_before_it_died_comes_from_the_gateway(make):
    trace = make.trace(make.session("s", (100_032, 0, 65, 0.0), (100_736, 1564, 1, 100.0)))
    (home,) = (f"r{at}" for at, tokens in enumerate(play_home(trace).run().prefilled) if tokens)
    events = [f"kill:{home}@30s", f"start:{home}@60s"]
    lost = play_home(trace, pull_gbps=96.0, events=events).run()
    assert (lost.pulled, lost.cached_tokens) == (0, 0)
    # Its prompt and the block that the answer filled were pushed in time, but not at a tenth of the rate.
    kept = play_home(trace, pull_gbps=96.0, gateway_tokens=200_000, events=events).run()
    assert (kept.pulled, kept.cached_tokens) == (1, 100_096)
    assert kept.ttft_s[1] == pytest.approx(1.37 + 0.33 + 0.06, rel=0.05)
    slow = play_home(trace, pull_gbps=4.0, gateway_tokens=200_000, events=events).run()
    assert 0 < slow.cached_tokens < 70_000
    small = play_home(trace, pull_gbps=96.0, gateway_tokens=40_000, events=events).run()
    assert 0 < small.cached_tokens <= 40_000


def test_turns_that_pull_nothing_do_not_notice_a_gateway(make):
    sessions = [
        make.session(f"s{at}", *[(6400 * (turn + 1), 100 * turn, 9, 5.0) for turn in range(4)])
        for at in range(4)
    ]
    trace = make.trace(*sessions)
    alone = play_home(trace, replicas=1, pull_gbps=96.0).run()
    beside = play_home(trace, replicas=1, pull_gbps=96.0, gateway_tokens=1_000_000).run()
    assert beside.ttft_s == alone.ttft_s
    assert beside.pulled == alone.pulled == 0


def test_a_replica_that_is_added_gets_new_sessions(make):
    sessions = [make.session(f"s{at}", (10_048, 0, 1, 0.0), at=20.0 * at) for at in range(30)]
    measured = play_home(make.trace(*sessions), replicas=1, events=["add:r1@300s"]).run()
    assert len(measured.prefilled) == 2
    assert measured.prefilled[1] > 40_000


def test_what_was_expected_of_each_turn_is_kept_beside_what_came(make):
    trace = make.trace(make.session("s", *[(6400 * (at + 1), 100 * at, 1, 5.0) for at in range(12)]))
    measured = play_home(trace, replicas=1).run()
    cached, delivered, expected_s, ttft_s = measured.expected[-1]
    assert cached == pytest.approx(delivered, abs=1)
    assert delivered == 11 * 6400
    assert expected_s == pytest.approx(ttft_s, rel=0.1)
    assert measured.asked_s == sorted(measured.asked_s)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_first_tokens_come_when_they_were_expected_though_replicas_are_busy(make, seed):
    rng = Random(seed)
    sessions = []
    for number in range(60):
        prompt, turns = rng.randrange(2_000, 20_000), []
        kept = 0
        for _ in range(12):
            turns.append((prompt, kept, rng.randrange(20, 3000), rng.uniform(1.0, 60.0)))
            kept = prompt // 64
            prompt += rng.randrange(100, 2000)
        sessions.append(make.session(f"s{number}", *turns, at=2.0 * number))
    # What is alive does not fit the devices, so much comes back from the host, and answers hold a good part
    # of the devices for up to a minute.
    measured = play_home(
        make.trace(*sessions),
        kv_blocks=4001,
        host_kv_blocks=16_000,
        host_gbps=100.0,
        kv_bytes_per_token=163_840,
        prefill_tps=12_000.0,
    ).run()
    assert measured.refused == 0
    assert figures(measured, 0).ttft_error < 0.1


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_fleet_whose_dead_never_come_back_is_played_to_its_end(make, replicas):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0), (1200, 15, 11, 5.0)))
    workload = choose(trace, Selection(), settings().context_tokens)
    events = [parse_event("kill:r0@10s"), parse_event("kill:r1@10s")]
    measured = FleetReplay(RING, workload, settings(), replicas=replicas, seed=0, events=events).run()
    assert len(measured.session_s) == 1
