"""What is believed to lie on devices and hosts, and for how long."""

from random import Random

import pytest

from router.core.engine import Engine
from router.core.fleet import ModelCard, ReplicaSpec, Report
from router.core.hashing import hash64
from router.core.observe import Outcome, Usage
from router.core.plan import Plan
from router.core.request import Turn
from router.core.strategies.priced import Priced
from tests.support.turns import A, engine, long, play, turn


def test_the_base_model_says_how_many_bytes_a_replica_holds_whatever_its_adapters_are() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_tokens=2000)], 0.0)
    of.probe_passed(A, 0.0)
    of.models(A, tuple(ModelCard(name, b"{}") for name in ("base", "x", "y", "z", "w")), 0.0)
    for at in range(60):
        play(of, turn("s", 1, model="base"), float(at), prompt=2000)
        play(of, turn("t", 2, model="x"), float(at), prompt=100)
    of.report(A, Report(), 61.0)
    # Half a token a byte: two segments of 4,000 bytes are 4,000 tokens, and one is all that fits.
    play(of, turn("u", 8, 9, model="base"), 62.0, prompt=4000)
    assert of.replicas(63.0)[0].index_segments == 1


def test_the_index_forgets_when_the_replica_must_have() -> None:
    of = Engine([Plan(name="p", strategy=Priced())], rng=Random(1))
    of.set_replicas([ReplicaSpec(A, "http://a:1", kv_tokens=2500)], 0.0)
    of.probe_passed(A, 0.0)
    play(of, turn("s", 1, 2), 0.0, prompt=2000, reply=0)
    play(of, turn("t", 8, 9), 1.0, prompt=2000, reply=0)
    assert of.decide(turn("u", 8, 9, 10), 2.0).cached_tokens > 1500
    assert of.decide(turn("u", 1, 2, 10), 2.0).cached_tokens < 1500


def test_what_the_device_gave_up_still_lies_on_the_host_and_costs_the_way_back() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000, kv_usage=0.0), 0.0)
    for name in "stuv":
        play(of, turn(name, hash64(name.encode()), hash64(name.encode() * 2)), 1.0, prompt=2000)
    (option,) = of.decide(turn("s", hash64(b"s"), hash64(b"ss")), 2.0).candidates
    assert (option.cached_tokens, option.reach_tokens) == (2000, 12_000)
    assert option.host_tokens == 2000
    (latest,) = of.decide(turn("v", hash64(b"v"), hash64(b"vv")), 2.0).candidates
    assert (latest.cached_tokens, latest.host_tokens) == (2000, 0)


def test_what_lies_on_the_device_is_within_reach_when_a_host_tier_is_heard_of() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=100_000), 0.0)
    play(of, long("s", 320), 0.0, prompt=80_000)
    of.report(A, Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000), 1.0)
    play(of, long("t", 320), 1.0, prompt=80_000)
    (option,) = of.decide(long("s", 320), 2.0).candidates
    assert option.cached_tokens == pytest.approx(80_000, rel=0.01)
    assert option.host_tokens == pytest.approx(60_000, rel=0.01)


def test_one_report_without_capacities_forgets_nothing() -> None:
    of = engine("a")
    full = Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000)
    of.report(A, full, 0.0)
    for session in "stu":
        play(of, long(session, 320), 0.0, prompt=80_000)
    before = of.decide(long("s", 320), 1.0).candidates[0]
    assert before.host_tokens == pytest.approx(80_000, rel=0.01)
    of.report(A, Report(running=0.0), 1.0)
    of.report(A, full, 2.0)
    assert of.decide(long("s", 320), 3.0).candidates[0].cached_tokens == before.cached_tokens


def test_a_host_tier_that_is_gone_holds_nothing() -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000), 0.0)
    for name in "st":
        play(of, turn(name, hash64(name.encode()), hash64(name.encode() * 2)), 1.0, prompt=2000)
    of.report(A, Report(kv_capacity_tokens=3000), 2.0)
    (option,) = of.decide(turn("s", hash64(b"s"), hash64(b"ss")), 3.0).candidates
    # The last 3,000 tokens are still on the device: 1,000 of them its own.
    assert (option.cached_tokens, option.host_tokens, option.reach_tokens) == (1000, 0, 3000)


def device_and_host() -> Engine:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000, kv_usage=0.0), 0.0)
    return of


def own(session: str) -> Turn:
    return turn(session, hash64(session.encode()), hash64(session.encode() * 2))


def on_host(of: Engine, session: str, now: float) -> int:
    return of.decide(own(session), now).candidates[0].host_tokens


def test_what_a_turn_that_runs_has_is_not_evicted_and_what_others_left_is() -> None:
    of = device_and_host()
    play(of, own("t"), 1.0, prompt=2000, reply=0)
    ticket = of.admit(own("s"), 2.0)
    ticket.first_byte(2.5)
    # The device keeps the 2,000 tokens that run, and the last 1,000 of whoever was there since.
    for number, session in enumerate("uv"):
        play(of, own(session), 3.0 + number, prompt=2000, reply=0)
        of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000, kv_usage=0.7), 3.5 + number)
    assert [on_host(of, session, 5.0) for session in "stuv"] == [0, 2000, 2000, 1000]
    assert ticket.of_this_life


def test_a_turn_that_has_ended_was_in_use_until_then() -> None:
    of = device_and_host()
    ticket = of.admit(own("s"), 1.0)
    ticket.first_byte(1.5)
    play(of, own("t"), 2.0, prompt=2000, reply=0)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(2000, 0, 0))
    assert [on_host(of, session, 4.0) for session in "st"] == [0, 1000]
    play(of, own("u"), 5.0, prompt=2000, reply=0)
    assert [on_host(of, session, 6.0) for session in "stu"] == [1000, 2000, 0]


def test_a_whole_answer_is_in_use_as_it_comes_and_runs_no_longer() -> None:
    of = device_and_host()
    ticket = of.admit(own("s").replace(stream=False), 1.0)
    play(of, own("t"), 2.0, prompt=2000, reply=0)
    ticket.first_byte(3.0)
    ticket.end(Outcome.COMPLETED, 3.0, Usage(2000, 0, 0))
    assert [on_host(of, session, 4.0) for session in "st"] == [0, 1000]
    play(of, own("u"), 5.0, prompt=2000, reply=0)
    of.report(A, Report(kv_capacity_tokens=3000, host_kv_tokens=9000, kv_usage=0.7), 6.0)
    assert [on_host(of, session, 7.0) for session in "stu"] == [1000, 2000, 0]


@pytest.mark.parametrize("end", [Outcome.CANCELLED, Outcome.COMPLETED])
def test_a_turn_that_is_over_has_nothing_brought_from_the_host_any_more(end: Outcome) -> None:
    of = engine("a")
    of.report(A, Report(kv_capacity_tokens=100_000, host_kv_tokens=400_000), 0.0)
    for session in "stu":
        play(of, long(session, 320), 0.0, prompt=80_000)
    first = of.admit(long("s", 320), 1.0)
    assert first.decision.chosen.host_tokens == pytest.approx(80_000, rel=0.01)
    (behind,) = of.decide(long("t", 320), 1.0).candidates
    assert behind.link_s == pytest.approx(80_000 * behind.curve.reload_s, rel=0.01)
    if end is Outcome.COMPLETED:
        first.first_byte(1.01)
        assert of.decide(long("t", 320), 1.01).candidates[0].link_s == 0.0
    first.end(end, 1.02)
    assert of.decide(long("t", 320), 1.02).candidates[0].link_s == 0.0


def test_a_turn_of_an_earlier_life_is_not_held_to_be_there() -> None:
    of = device_and_host()
    ticket = of.admit(own("s"), 1.0)
    ticket.first_byte(1.5)
    of.report(A, Report(start_time=100.0, kv_capacity_tokens=3000, host_kv_tokens=9000), 2.0)
    of.report(A, Report(start_time=200.0, kv_capacity_tokens=3000, host_kv_tokens=9000), 3.0)
    ticket.end(Outcome.COMPLETED, 4.0, Usage(2000, 0, 0))
    assert of.decide(own("s"), 5.0).candidates[0].cached_tokens == 0
