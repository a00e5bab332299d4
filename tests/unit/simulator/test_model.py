"""The engine in virtual time: what a request waits for, what it hits, and that nothing leaks."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.simulator.model import EngineModel, Event, Finished, FirstToken, Job, Preempted, Tokens
from router.simulator.settings import ReplicaSettings

GROWING = {
    "prefill_double_tokens": 60.0,
    "decode_double_seqs": 3.0,
    "decode_double_tokens": 90.0,
    "step_ms": 7.0,
}
"""Costs that grow, and fast."""


def engine(kv_blocks: int = 1000, **given: float) -> EngineModel:
    """An engine on which requests can hold so many blocks."""
    values = {"prefill_tps": 1000.0, "decode_tps": 50.0, "batch_tokens": 512, **given}
    values["kv_blocks"] = kv_blocks + 1
    return EngineModel(ReplicaSettings(**values))  # type: ignore[arg-type]


def job(name: str, prompt: int, output: int = 1, *, seed: int = 0, block: int = 16) -> Job:
    """A prompt of its own for each seed: two of one seed share what the shorter has."""
    return Job(name, prompt, output, [hash((seed, at)) for at in range((prompt + output) // block)])


def run(model: EngineModel, until: float = 1e6) -> list[Event]:
    """Drive it as a replay does, from event to event."""
    events: list[Event] = []
    while (at := model.next_event_time()) is not None and at <= until:
        events += model.advance(at)
    return events


def ttft(events: list[Event]) -> dict[str, float]:
    return {event.id: pytest.approx(event.ttft_s) for event in events if isinstance(event, FirstToken)}


def cached(events: list[Event]) -> dict[str, int]:
    return {event.id: event.cached_tokens for event in events if isinstance(event, FirstToken)}


def ended(events: list[Event]) -> dict[str, float]:
    return {event.id: event.at for event in events if isinstance(event, Finished)}


def test_an_idle_engine_waits_for_nothing() -> None:
    model = engine()
    assert model.next_event_time() is None
    assert model.advance(5.0) == []


def test_the_first_token_comes_after_the_prompt_at_the_prefill_rate() -> None:
    model = engine()
    model.submit(job("a", 2000), 3.0)
    assert model.next_event_time() == 3.0
    events = run(model)
    assert ttft(events) == {"a": 2.0}
    assert ended(events) == {"a": pytest.approx(5.0)}


def test_further_tokens_come_at_the_decode_rate() -> None:
    model = engine()
    model.submit(job("a", 100, 4), 0.0)
    times = [event.at for event in run(model) if isinstance(event, FirstToken | Tokens)]
    assert times == pytest.approx([0.1, 0.12, 0.14, 0.16])


def test_only_what_is_missing_is_computed() -> None:
    model = engine()
    model.submit(job("a", 1600), 0.0)
    run(model)
    model.submit(job("b", 2000), 10.0)
    events = run(model)
    assert cached(events) == {"b": 1600}
    assert ttft(events) == {"b": 0.4}


def test_a_full_hit_still_computes_its_last_block() -> None:
    model = engine()
    model.submit(job("a", 160), 0.0)
    run(model)
    model.submit(job("b", 160), 1.0)
    model.submit(job("c", 161, seed=0), 2.0)
    events = run(model)
    assert cached(events) == {"b": 144, "c": 160}
    assert ttft(events)["b"] == 0.016


def test_the_reply_is_cached_but_for_its_last_token() -> None:
    model = engine()
    model.submit(job("a", 16, 16), 0.0)  # 32 tokens, of which 31 were computed
    run(model)
    model.submit(job("b", 100), 1.0)
    assert cached(run(model)) == {"b": 16}
    model.submit(job("c", 16, 17, seed=5), 2.0)
    run(model)
    model.submit(job("d", 100, seed=5), 3.0)
    assert cached(run(model)) == {"d": 32}


def test_a_cold_prompt_makes_warm_turns_wait() -> None:
    model = engine(batch_tokens=8192, prefill_tps=12_500, kv_blocks=10_000)
    model.submit(job("warm", 800, seed=1), 0.0)
    run(model)
    model.submit(job("cold", 100_000, seed=2), 1.0)
    model.submit(job("late", 810, seed=1), 1.01)
    waits = {event.id: event.ttft_s for event in run(model) if isinstance(event, FirstToken)}
    assert waits["cold"] == pytest.approx(8.0, abs=0.01)
    assert 7.9 < waits["late"] < 8.1  # alone it would have taken a millisecond


def test_decodes_go_on_beside_a_prefill_but_slower() -> None:
    model = engine(batch_tokens=101)
    model.submit(job("talker", 16, 200, seed=1), 0.0)
    run(model, until=0.5)
    model.submit(job("reader", 1000, seed=2), 0.5)
    gaps: list[float] = []
    last = 0.5
    for event in run(model, until=2.0):
        if event.id == "talker" and isinstance(event, Tokens) and event.at > 0.55:
            gaps.append(event.at - last)
        last = event.at
        if event.id == "reader":
            break
    assert len(gaps) == 10
    assert gaps == pytest.approx([0.12] * 10)  # 100 prompt tokens and one decode interval a step


def test_one_that_does_not_fit_holds_up_those_behind_it() -> None:
    model = engine(kv_blocks=10)
    model.submit(job("a", 96, 40, seed=1), 0.0)
    run(model, until=0.2)
    model.submit(job("b", 96, seed=2), 0.2)
    model.submit(job("c", 16, seed=3), 0.2)  # would fit at once
    assert model.stats(0.3).waiting == 2
    order = [event.id for event in run(model) if isinstance(event, FirstToken)]
    assert order == ["b", "c"]


def test_no_more_sequences_run_than_allowed() -> None:
    model = engine(max_num_seqs=2)
    for number in range(4):
        model.submit(job(str(number), 16, 5, seed=number), 0.0)
    model.advance(0.01)
    assert (model.stats(0.01).running, model.stats(0.01).waiting) == (2, 2)
    assert len(ended(run(model))) == 4


def test_without_blocks_the_last_admitted_computes_again_and_loses_no_token() -> None:
    model = engine(kv_blocks=8)
    model.submit(job("a", 48, 40, seed=1), 0.0)
    model.submit(job("b", 48, 40, seed=2), 0.0)
    events = run(model)
    assert next(event.id for event in events if isinstance(event, Preempted)) == "b"
    tokens = {"a": 0, "b": 0}
    for event in events:
        if isinstance(event, FirstToken):
            tokens[event.id] += 1
        elif isinstance(event, Tokens):
            tokens[event.id] += event.tokens
    assert tokens == {"a": 40, "b": 40}
    assert ended(events)["a"] < ended(events)["b"]
    assert model.counters.preemptions >= 1
    assert model.cache.used == 0


@pytest.mark.parametrize("at", [0.05, 0.3])
def test_an_abort_frees_its_blocks(at: float) -> None:
    model = engine()
    model.submit(job("a", 100, 50), 0.0)
    model.advance(at)
    assert model.cache.used > 0
    assert model.abort("a", at)
    assert model.cache.used == 0
    assert run(model) == []
    assert model.next_event_time() is None
    assert not model.abort("a", at)
    assert model.counters.aborted == 1


def test_an_abort_in_the_queue_lets_the_next_one_in() -> None:
    model = engine(kv_blocks=10)
    model.submit(job("a", 96, 40, seed=1), 0.0)
    model.submit(job("b", 96, seed=2), 0.0)
    model.submit(job("c", 16, seed=3), 0.0)
    model.advance(0.2)
    model.abort("b", 0.2)
    events = run(model)
    assert ended(events)["c"] < ended(events)["a"]


def test_blocks_from_the_host_arrive_at_its_bandwidth() -> None:
    # 163,840 bytes a token at 26.2144 Gb/s is 20,000 tokens a second
    model = engine(kv_blocks=100, host_kv_blocks=1000, host_gbps=26.2144)
    model.submit(job("a", 1600 - 16, seed=1), 0.0)
    run(model)
    model.submit(job("b", 1600 - 16, seed=2), 10.0)
    run(model)
    model.submit(job("c", 1599, seed=1), 20.0)
    model.advance(20.02)
    assert model.stats(20.02).loading == 1
    events = run(model)
    assert cached(events) == {"c": 1584}
    on_host = model.counters.host_tokens
    assert on_host > 1500
    assert ttft(events) == {"c": on_host / 20_000 + 15 / 1000}


def test_others_run_while_blocks_arrive() -> None:
    model = engine(kv_blocks=60, host_kv_blocks=1000, host_gbps=1.0)
    model.submit(job("a", 800, seed=1), 0.0)
    run(model)
    model.submit(job("b", 800, seed=2), 10.0)
    run(model)
    model.submit(job("c", 800, seed=1), 20.0)
    model.submit(job("d", 16, seed=3), 20.001)
    events = run(model)
    assert ttft(events)["d"] == 0.016
    assert ended(events)["d"] < ended(events)["c"]


def test_an_abort_while_blocks_arrive_frees_them() -> None:
    model = engine(kv_blocks=60, host_kv_blocks=1000, host_gbps=1.0)
    for number, name in enumerate("ab"):
        model.submit(job(name, 800, seed=number), number * 10.0)
        run(model)
    model.submit(job("c", 800, seed=0), 20.0)
    model.advance(20.0)
    assert model.stats(20.0).loading == 1
    model.abort("c", 20.001)
    assert model.cache.used == 0
    assert model.next_event_time() is None


def test_requests_that_hold_blocks_from_the_host_do_not_starve_each_other() -> None:
    model = engine(kv_blocks=20, host_kv_blocks=1000, host_gbps=10_000.0)
    for number, (name, prompt) in enumerate([("a", 33), ("b", 257), ("flood", 310)]):
        model.submit(job(name, prompt, seed=number), number * 10.0)
        run(model)
    # "first" brings 2 blocks back and needs 8 more; "second" holds 16 then, and leaves 2.
    model.submit(job("short", 16, seed=9), 50.0)
    model.submit(job("first", 160, seed=0), 50.0)
    model.submit(job("second", 258, seed=1), 50.0)
    model.advance(50.001)
    assert model.stats(50.001).loading == 2
    events = run(model)
    assert [event.id for event in events if isinstance(event, Finished)] == ["short", "first", "second"]
    assert cached(events)["first"] == 32
    assert model.cache.used == 0


def test_one_that_needs_what_another_generates_gets_in_as_soon_as_it_fits() -> None:
    model = engine(kv_blocks=9)
    model.submit(job("a", 60, 80), 0.0)
    run(model, until=0.07)
    model.submit(job("b", 130, 1), 0.07)  # 6 blocks beside the 4 of a; one less when a has filled its last
    events = model.advance(10.0)
    assert cached(events)["b"] == 64
    assert ended(events)["b"] < ended(events)["a"]


def test_one_that_needs_what_another_computes_gets_in_once_it_is_there() -> None:
    model = engine(kv_blocks=20, batch_tokens=64)
    model.submit(job("a", 200, 60), 0.0)
    model.advance(0.0)
    model.submit(job("b", 210, 10), 0.01)  # 14 blocks beside the 13 and more of a: only as a share of them
    events = run(model)
    assert cached(events)["b"] > 0
    assert ended(events)["b"] < ended(events)["a"]


def test_decoding_gets_slower_with_more_sequences_and_with_longer_ones() -> None:
    model = engine(decode_double_seqs=1.0, decode_double_tokens=1000.0)
    for number in range(2):
        model.submit(job(str(number), 100, 3, seed=number), 0.0)
    times = [event.at for event in run(model) if event.id == "0" and isinstance(event, FirstToken | Tokens)]
    # 50 a second, twice that for the second sequence, and a thousandth of it more for each token of both.
    assert times == pytest.approx([0.2, 0.2 + 0.044, 0.2 + 0.044 + 0.04404])


def test_a_step_that_only_prefills_takes_its_own_time_too() -> None:
    model = engine(step_ms=30.0)
    model.submit(job("a", 1000, 2), 0.0)  # two steps of 512 tokens at most
    events = run(model)
    assert ttft(events) == {"a": 1.06}
    assert ended(events) == {"a": pytest.approx(1.08)}


def test_the_cost_of_a_prompt_may_grow_with_what_stands_before_it() -> None:
    model = EngineModel(
        ReplicaSettings(batch_tokens=100),
        prefill_cost=lambda behind, tokens: tokens * (1 + behind / 100) / 100,
    )
    model.submit(job("a", 300), 0.0)
    assert ttft(run(model)) == {"a": 1 + 2 + 3}


def test_what_could_never_run_is_refused() -> None:
    model = engine(kv_blocks=10)
    with pytest.raises(ValueError, match="context of 160"):
        model.submit(job("a", 160, 1), 0.0)
    with pytest.raises(ValueError, match="at least one"):
        model.submit(job("a", 0, 1), 0.0)
    model.submit(job("a", 10), 0.0)
    with pytest.raises(ValueError, match="in flight"):
        model.submit(job("a", 10), 0.0)


def test_a_replay_without_token_events_ends_at_the_same_time() -> None:
    settings_ = ReplicaSettings(prefill_tps=1000.0)
    ends = []
    for token_events in (True, False):
        model = EngineModel(settings_, token_events=token_events)
        model.submit(job("a", 100, 300), 0.0)
        model.submit(job("b", 50, 200, seed=1), 0.05)
        events = model.advance(1e3)
        assert any(isinstance(event, Tokens) for event in events) == token_events
        ends.append(ended(events))
    assert ends[0] == ends[1]


def test_decoding_alone_takes_few_events_when_time_jumps() -> None:
    model = engine()
    model.submit(job("a", 100, 5_000), 0.0)
    events = model.advance(1e4)
    assert len(events) < 10
    assert sum(event.tokens for event in events if isinstance(event, Tokens)) == 4_999
    assert model.counters.generated_tokens == 5_000


def test_the_counters_tell_where_prompt_tokens_came_from() -> None:
    model = engine()
    model.submit(job("a", 160), 0.0)
    run(model)
    model.submit(job("b", 200), 1.0)
    run(model)
    counters = model.counters
    assert (counters.queries, counters.hits) == (360, 160)
    assert (counters.prompt_tokens, counters.computed_tokens, counters.device_tokens) == (360, 200, 160)


Arrival = tuple[float, int, int, int]  # gap, prompt, output, seed
arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.01, 0.5, 4.0]), st.integers(1, 90), st.integers(1, 40), st.integers(0, 3)
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=arrivals,
    blocks=st.sampled_from([9, 14, 40]),
    host=st.sampled_from([0, 20]),
    seqs=st.sampled_from([1, 3, 50]),
    budget=st.sampled_from([4, 32, 512]),
    aborts=st.sets(st.integers(0, 11)),
)
def test_every_request_ends_and_no_block_is_lost(
    arrivals: list[Arrival], blocks: int, host: int, seqs: int, budget: int, aborts: set[int]
) -> None:
    model = engine(
        kv_blocks=blocks, host_kv_blocks=host, host_gbps=2.0, max_num_seqs=seqs, batch_tokens=budget
    )
    now = 0.0
    wanted: dict[str, int] = {}
    events: list[Event] = []
    for number, (gap, prompt, output, seed) in enumerate(arrivals):
        now += gap
        output = min(output, blocks * 16 - prompt)
        model.submit(job(str(number), prompt, output, seed=seed), now)
        wanted[str(number)] = output
        if number in aborts:
            events += model.advance(now + gap / 2)
            if model.abort(str(number), now + gap / 2):
                del wanted[str(number)]
        events += model.advance(now)
        assert model.cache.used + model.cache.free == blocks
    events += run(model)
    made = dict.fromkeys(wanted, 0)
    for event in events:
        if event.id in made and isinstance(event, FirstToken | Tokens):
            made[event.id] += 1 if isinstance(event, FirstToken) else event.tokens
    assert made == wanted
    assert set(ended(events)) == set(wanted)
    assert model.in_flight == 0
    assert model.cache.free == blocks
    assert [event.at for event in events] == sorted(event.at for event in events)


@settings(max_examples=100, deadline=None)
@given(
    arrivals=arrivals,
    blocks=st.sampled_from([9, 40]),
    looks=st.lists(st.floats(0, 20), max_size=30),
    costs=st.sampled_from([{}, GROWING]),
)
def test_how_often_the_driver_looks_changes_nothing(
    arrivals: list[Arrival], blocks: int, looks: list[float], costs: dict[str, float]
) -> None:
    def ends(extra: list[float]) -> dict[str, float]:
        model = engine(kv_blocks=blocks, **costs)
        now = 0.0
        events: list[Event] = []
        for number, (gap, prompt, output, seed) in enumerate(arrivals):
            for look in sorted(look for look in extra if now < look < now + gap):
                events += model.advance(look)
            now += gap
            model.submit(job(str(number), prompt, min(output, blocks * 16 - prompt), seed=seed), now)
        return ended(events + model.advance(1e6))

    assert ends(looks) == ends([])


def test_one_that_gives_its_blocks_up_with_nobody_left_to_run_starts_again_at_once() -> None:
    model = engine(kv_blocks=9, host_kv_blocks=20, host_gbps=2.0, max_num_seqs=3)
    for number, (prompt, output) in enumerate([(42, 40), (33, 33), (64, 18)]):
        model.submit(job(str(number), prompt, output, seed=number), 0.0)
    # However far the driver looks ahead.
    events = model.advance(1e6)
    assert [event.at for event in events if isinstance(event, Preempted)][-1] == pytest.approx(1.239)
    assert ended(events)["2"] == pytest.approx(1.24)


def test_the_next_outcome_passes_over_steps_that_only_decode() -> None:
    model = engine()
    assert model.next_outcome_time() is None
    model.submit(job("a", 100, 50), 0.0)
    assert model.next_outcome_time() == 0.0
    assert model.advance(0.0) == []
    assert model.next_outcome_time() == 0.1
    model.advance(0.1)
    end = model.next_outcome_time()
    assert end == pytest.approx(0.1 + 49 / 50)
    assert end is not None
    last = model.advance(end)[-1]
    assert (type(last), last.at) == (Finished, end)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=arrivals,
    blocks=st.sampled_from([9, 14, 40]),
    host=st.sampled_from([0, 20]),
    seqs=st.sampled_from([1, 3, 50]),
    costs=st.sampled_from([{}, GROWING]),
)
@example(
    arrivals=[(0.0, 15, 35, 0), (0.01, 64, 34, 0), (0.01, 33, 17, 0)], blocks=9, host=20, seqs=3, costs={}
)
@example(
    arrivals=[(0.0, 7, 27, 0), (0.0, 8, 25, 0), (0.5, 65, 1, 0), (0.0, 1, 1, 0), (0.0, 1, 1, 0)],
    blocks=9,
    host=0,
    seqs=50,
    costs={},
)
def test_a_driver_that_sleeps_until_the_next_outcome_is_never_late(
    arrivals: list[Arrival], blocks: int, host: int, seqs: int, costs: dict[str, float]
) -> None:
    def outcomes(*, sleeps: bool) -> list[Event]:
        settings = {"kv_blocks": blocks, "host_kv_blocks": host, "host_gbps": 2.0, "max_num_seqs": seqs}
        model = engine(**settings, **costs)  # type: ignore[arg-type]
        found: list[Event] = []

        def drive(until: float) -> None:
            while (at := model.next_outcome_time() if sleeps else model.next_event_time()) is not None:
                if at >= until:  # what comes at the same instant shares the step that begins then
                    break
                for event in model.advance(at):
                    if isinstance(event, FirstToken | Finished):
                        found.append(event)
                        assert event.at == at or not sleeps

        now = 0.0
        for number, (gap, prompt, output, seed) in enumerate(arrivals):
            now += gap
            drive(now)
            model.submit(job(str(number), prompt, min(output, blocks * 16 - prompt), seed=seed), now)
        drive(1e6)
        return found

    assert outcomes(sleeps=True) == outcomes(sleeps=False)


# --- pulls ------------------------------------------------------------------------------------------------


def pulled(name: str, prompt: int, blocks: int) -> Job:
    return job(name, prompt)._replace(pulled=blocks)


def test_what_is_pulled_is_waited_for_and_not_computed() -> None:
    model = engine(kv_bytes_per_token=1_000_000, host_gbps=8.0)
    model.submit(pulled("a", 1600, 50), 0.0)
    assert run(model) == []
    model.arrived("a", 0, 3.0)
    events = run(model)
    # 50 blocks of 16 MB at 1 GB/s, then the other 800 tokens.
    assert ttft(events) == {"a": 3.0 + 0.8 + 0.8}
    assert cached(events) == {"a": 800}
    assert model.cache.used == 0


def test_what_of_a_pull_does_not_come_is_computed() -> None:
    model = engine(kv_bytes_per_token=1_000_000, host_gbps=8.0)
    model.submit(pulled("a", 1600, 50), 0.0)
    run(model)
    model.arrived("a", 20, 3.0)
    assert ttft(run(model)) == {"a": 3.0 + 0.48 + 1.12}


def test_a_pull_that_ends_before_there_are_blocks_waits_in_host_memory() -> None:
    model = engine(kv_blocks=110, kv_bytes_per_token=1_000_000, host_gbps=8.0)
    model.submit(job("first", 1280, 17, seed=1), 0.0)
    model.submit(pulled("a", 1600, 50), 0.0)
    model.arrived("a", 0, 0.5)
    events = run(model)
    free = ended(events)["first"]
    assert ttft(events)["a"] == pytest.approx(free + 0.8 + 0.8, abs=0.05)


def test_what_lies_here_already_is_not_waited_for() -> None:
    model = engine()
    model.submit(job("before", 1600), 0.0)
    run(model)
    model.submit(pulled("a", 1600, 50), 5.0)
    assert cached(run(model)) == {"a": 1584}


def test_others_go_on_while_one_waits_for_its_pull() -> None:
    model = engine()
    model.submit(pulled("a", 1600, 50), 0.0)
    model.submit(job("b", 100, seed=1), 0.0)
    assert ttft(run(model)) == {"b": 0.1}
    assert model.stats(1.0).loading == 1


def test_an_abort_in_the_midst_of_a_pull_gives_all_blocks_back() -> None:
    model = engine()
    model.submit(pulled("a", 1600, 50), 0.0)
    run(model)
    assert model.cache.used == 50
    assert model.abort("a", 1.0)
    assert model.cache.used == 0
    model.arrived("a", 0, 2.0)
    assert run(model) == []
