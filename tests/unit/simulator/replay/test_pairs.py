"""Prefill and decode replicas in virtual time: exact values, and how a pair can come to less."""

import pytest

from router.core.pairbook import PairEnd, Unclaimed, Unreturned
from router.core.plan import PairRules, Plan, QueueRules
from router.core.strategies.priced import Priced
from router.simulator.replay.events import parse_event
from router.simulator.replay.fleet import FleetReplay
from router.simulator.replay.workload import Selection, choose
from router.simulator.settings import ReplicaSettings

HOME = Plan(name="home", strategy=Priced(), prefill_tokens_per_s=1000.0)
WHOLE = Plan(name="whole", strategy=Priced(), prefill_tokens_per_s=1000.0, pair=PairRules(whole_streams=True))


def fleet(
    trace, *, plan=HOME, prefills=1, replicas=1, events=(), gbps=0.00768, gateway_tokens=0, **replica
) -> FleetReplay:
    """15 blocks take a second from one replica to another; prompts are computed at 1,000 tokens a second."""
    given = {"block_size": 64, "kv_blocks": 1001, "prefill_tps": 1000.0, "decode_tps": 50.0}
    given |= {"kv_bytes_per_token": 1000, "host_gbps": 1e9}
    settings = ReplicaSettings(max_model_len=10**9, **(given | replica))
    workload = choose(trace, Selection(), settings.context_tokens)
    return FleetReplay(
        plan,
        workload,
        settings,
        replicas=replicas,
        prefills=prefills,
        seed=0,
        pull_gbps=gbps,
        gateway_tokens=gateway_tokens,
        events=[parse_event(event) for event in events],
    )


def held_blocks(replay) -> dict[str, int]:
    return {name: replica.model.cache.used for name, replica in replay._replicas.items()}


def two_turns(make, *, think=10.0):
    """The second one shares 15 blocks with the first, and has 5 more."""
    return make.trace(make.session("s", (1000, 0, 11, 0.0), (1280, 15, 11, think)))


SWAP = ("kill:p0@5s", "add:p1@5s")
"""The prefill replica's KV is gone before the second turn."""


def test_a_prompt_is_computed_then_fetched_and_only_its_end_is_decodes(make):
    replay = fleet(make.trace(make.session("s", (1000, 0, 11, 0.0))))
    measured = replay.run()
    # A second of prefill, another for 15 blocks, 40 tokens of the 16th at decode.
    assert measured.ttft_s == pytest.approx([1.0 + 1.0 + 0.04], abs=1e-6)
    assert measured.session_s == pytest.approx([2.04 + 0.2], abs=1e-6)
    assert measured.kinds == {"pair": 1}
    assert (measured.prompt_tokens, measured.cached_tokens) == (1000, 0), "nobody had any of it before"
    assert measured.prefilled == [1000], "decode computes what is left of a block, and is not counted here"
    assert replay._engine.pairs.ends[PairEnd.ONE_WAY] == 1
    assert replay._engine.in_flight() == 0
    assert held_blocks(replay) == {"r0": 0, "p0": 0}, "each keeps for its own time, and no longer"


def test_the_next_turn_fetches_back_what_decode_holds_and_computes_the_rest(make):
    replay = fleet(two_turns(make), events=SWAP, streams_offer=True)
    measured = replay.run()
    # 15 blocks come back in a second, 320 tokens are computed, 5 more blocks go to decode, which has 15 and
    # then all: a step of its own makes the first token.
    second = 1.0 + 0.32 + 5 / 15 + 0.02
    assert measured.ttft_s == pytest.approx([2.04, second], abs=1e-6)
    assert measured.kinds == {"pair": 1, "pair-pull": 1}
    assert (measured.pulled, measured.pulled_tokens) == (1, 960)
    assert measured.cached_tokens == 960
    assert replay._engine.pairs.ends[PairEnd.PULLED] == 1
    assert held_blocks(replay) == {"r0": 0, "p0": 0, "p1": 0}


def test_a_prefill_replica_that_has_the_beginning_is_sent_no_claim_and_the_old_one_is_let_go_of(make):
    replay = fleet(two_turns(make), streams_offer=True)
    measured = replay.run()
    assert measured.ttft_s[1] == pytest.approx(0.32 + 5 / 15 + 0.02, abs=1e-6)
    assert measured.pulled == 0
    assert replay._engine.pairs.unreturned[Unreturned.CHEAPER] == 1
    assert held_blocks(replay) == {"r0": 0, "p0": 0}


@pytest.mark.parametrize("streams_offer", [False, True])
def test_what_streams_do_not_tell_of_is_computed_again_and_pinned_all_the_same(make, streams_offer):
    replay = fleet(two_turns(make, think=30.0), events=SWAP, streams_offer=streams_offer, decode_pin_s=100.0)
    measured = replay.run(until_s=20.0)
    assert held_blocks(replay)["r0"] == 16
    measured = replay.run()
    assert measured.cached_tokens == (960 if streams_offer else 0)
    assert replay._engine.pairs.unclaimed[Unclaimed.STREAMED] == (0 if streams_offer else 2)
    assert held_blocks(replay)["r0"] == 0


def test_a_whole_answer_comes_late_and_leaves_its_own_blocks_as_well(make):
    trace = make.trace(make.session("s", (960, 0, 129, 0.0), (1280, 15, 11, 10.0)))
    replay = fleet(trace, plan=WHOLE, events=SWAP)
    measured = replay.run()
    # The client has the first token with the last.
    assert measured.ttft_s[0] == pytest.approx(0.96 + 1.0 + 0.02 + 128 * 0.02, abs=1e-6)
    assert measured.cached_tokens == 960 + 128
    assert (measured.pulled, measured.pulled_tokens) == (1, 1088)


def test_one_way_decode_keeps_nothing(make):
    replay = fleet(two_turns(make), events=SWAP, two_way=False, streams_offer=True)
    measured = replay.run(until_s=4.0)
    assert held_blocks(replay) == {"r0": 0, "p0": 0}
    measured = replay.run()
    assert (measured.pulled, measured.cached_tokens) == (0, 0)
    assert measured.kinds == {"pair": 2}


def test_an_edited_history_fetches_what_is_before_the_edit_and_too_little_is_not_worth_it(make):
    # 5 blocks are as before the edit, 320 tokens; then 3, which is less than the policy's least.
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0), (1280, 5, 11, 10.0), (1280, 3, 11, 10.0)))
    events = (*SWAP, "kill:p1@20s", "add:p2@20s")
    replay = fleet(trace, events=events, streams_offer=True, gbps=7.68)
    measured = replay.run()
    assert measured.pulled_tokens == 5 * 64
    unreturned = replay._engine.pairs.unreturned
    assert (unreturned[Unreturned.NONE], unreturned[Unreturned.OTHER_TOKENS]) == (1, 1)
    assert set(held_blocks(replay).values()) == {0}


def test_decode_without_a_prefill_replica_computes_for_itself(make):
    replay = fleet(two_turns(make), events=["kill:p0@5s"])
    measured = replay.run()
    assert measured.kinds["pair"] == 1
    # What it has of the first turn it need not compute.
    assert measured.ttft_s[1] == pytest.approx(0.32, abs=1e-6)
    assert measured.cached_tokens == 960


@pytest.mark.parametrize(("killed", "ttft_s"), [("p0", 2.04), ("p1", 2.54)])
def test_a_prefill_replica_that_dies_with_a_prompt_hands_it_to_another(make, killed, ttft_s):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0)))
    replay = fleet(trace, prefills=2, events=[f"kill:{killed}@500ms"])
    measured = replay.run()
    # It was at p1, half of it computed.
    assert measured.ttft_s == pytest.approx([ttft_s], abs=1e-6)
    assert measured.died == 0
    assert replay._engine.pairs.unreturned[Unreturned.NONE] == 1, "of a turn, not of each that had its prompt"
    assert replay._engine.in_flight() == 0
    assert set(held_blocks(replay).values()) == {0}


def test_both_deaths_of_a_prompt_are_told_and_it_is_asked_for_again(make):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0)))
    replay = fleet(trace, prefills=2, events=["kill:p1@500ms", "kill:p0@600ms"])
    measured = replay.run()
    assert measured.died == 1
    assert replay._engine.pairs.ends[PairEnd.FAILED] == 1
    # After a second decode has it alone.
    assert measured.ttft_s == pytest.approx([1.6 + 1.0], abs=1e-6)


def test_a_prefill_replica_that_dies_while_decode_fetches_leaves_the_rest_to_decode(make):
    replay = fleet(make.trace(make.session("s", (1000, 0, 11, 0.0))), events=["kill:p0@1500ms"])
    measured = replay.run()
    # 7 of 15 blocks had come: decode computes the other 552 tokens.
    assert measured.ttft_s == pytest.approx([1.5 + 0.552], abs=1e-6)
    assert (measured.died, held_blocks(replay)["r0"]) == (0, 0)


@pytest.mark.parametrize(
    ("at", "back", "ttft_s"),
    [
        # Nobody is there when the prompt is computed: asked again a second later, p0 has its blocks still.
        ("500ms", "1200ms", 2.0 + 0.04 + 1.0 + 0.04),
        ("1500ms", "2s", 2.5 + 0.04 + 1.0 + 0.04),
        # Its first token was out, so it is asked for anew, and waits from then on.
        ("2100ms", "2500ms", 1.0 + 0.04 + 1.0 + 0.04),
    ],
)
def test_decode_that_dies_with_a_turn_is_asked_again(make, at, back, ttft_s):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0)))
    replay = fleet(trace, events=[f"kill:r0@{at}", f"start:r0@{back}"])
    measured = replay.run()
    assert measured.ttft_s[-1] == pytest.approx(ttft_s, abs=1e-6)
    assert (len(measured.session_s), measured.died) == (1, 1)
    assert replay._engine.in_flight() == 0
    assert set(held_blocks(replay).values()) == {0}


def test_a_turn_whose_decode_replica_died_before_goes_on_at_another(make):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0)))
    times = []
    for name in ("r0", "r1"):
        replay = fleet(trace, replicas=2, events=[f"kill:{name}@500ms"])
        measured = replay.run()
        times += measured.ttft_s
        assert (len(measured.session_s), measured.died) == (1, 0)
        assert set(held_blocks(replay).values()) == {0}
    # p0 has all but 40 tokens of the prompt that it is given again.
    assert sorted(times) == pytest.approx([2.04, 2.08], abs=1e-6)


def test_a_fetch_back_whose_holder_dies_is_declined_and_the_prompt_computed(make):
    # The second turn begins at 12.24 and fetches for a second.
    events = (*SWAP, "add:r1@6s", "kill:r0@12600ms")
    replay = fleet(two_turns(make), events=events, streams_offer=True)
    measured = replay.run()
    pairs = replay._engine.pairs
    assert pairs.unreturned[Unreturned.DECLINED] == 1
    # Computed from 12.6 on. Then its decode replica is not there, and r1 is: for that one p1 computes the
    # last block once more.
    assert measured.ttft_s[1] == pytest.approx(0.36 + 1.28 + 0.064 + 20 / 15 + 0.02, abs=1e-6)
    assert (len(measured.session_s), measured.died) == (1, 0)
    assert set(held_blocks(replay).values()) == {0}
    assert len(pairs.claims) == 0


@pytest.mark.parametrize(
    ("block_s", "ttft_s"),
    [
        # A tenth of a second beyond what computing takes, then that, 5 blocks to decode, a step there.
        (1.7, 0.1 + 1.28 + 1.28 + 5 * 1.7 + 0.02),
        # All has come by 1.35. The step that computes the rest goes on although nobody waits for it.
        (0.09, 15 * 0.09 + 0.32 + 0.064 + 5 * 0.09 + 0.02),
    ],
    ids=["in the fetch", "behind it"],
)
def test_a_prompt_that_fetches_for_too_long_is_computed(make, block_s, ttft_s):
    rules = PairRules(deadline_s=0.1)
    plan = Plan(name="short", strategy=Priced(), prefill_tokens_per_s=1000.0, pair=rules)
    events = ("kill:p0@30s", "add:p1@30s")
    gbps = 64 * 1000 * 8 / block_s / 1e9
    replay = fleet(two_turns(make, think=30.0), plan=plan, events=events, streams_offer=True, gbps=gbps)
    measured = replay.run()
    assert replay._engine.pairs.unreturned[Unreturned.DECLINED] == 1
    assert measured.ttft_s == pytest.approx([1.0 + 15 * block_s + 0.04, ttft_s], abs=0.02)
    assert len(measured.session_s) == 1
    assert set(held_blocks(replay).values()) == {0}


def test_what_is_being_read_is_kept_until_it_is(make):
    replay = fleet(make.trace(make.session("s", (1000, 0, 11, 0.0))), prefill_lease_s=0.5)
    replay.run(until_s=1.9)
    assert held_blocks(replay)["p0"] == 16
    replay.run()
    assert held_blocks(replay)["p0"] == 0


def test_what_is_kept_for_a_later_turn_holds_up_none_that_is_here(make):
    rules = PairRules(kv_usage=0.95)
    plan = Plan(name="queued", strategy=Priced(), prefill_tokens_per_s=1000.0, queue=QueueRules(), pair=rules)
    trace = make.trace(
        make.session("kept", (1000, 0, 11, 0.0), (1280, 15, 11, 50.0)),
        make.session("long", (1000, 0, 500, 0.0), at=5.0),
        make.session("next", (1400, 0, 11, 0.0), at=6.0),
    )
    # 16 blocks are kept and 16 to 24 taken, for ten seconds, of 48.
    replay = fleet(trace, plan=plan, kv_blocks=49, streams_offer=True)
    measured = replay.run()
    # It waits for the next look at its replica, and has its prompt in 1.4 and 1.4 seconds.
    assert 2.8 < max(measured.ttft_s) < 4.0
    assert set(held_blocks(replay).values()) == {0}


def test_a_step_that_ends_as_blocks_are_given_back_is_heard_of(make):
    # At 2.0 decode has the first prompt, whose blocks p0 gives back, and p0 has computed the second.
    trace = make.trace(make.session("a", (1000, 0, 11, 0.0)), make.session("b", (1000, 0, 11, 0.0), at=1.0))
    replay = fleet(trace)
    assert len(replay.run().session_s) == 2
    assert replay._engine.in_flight() == 0


def test_a_replica_whose_blocks_were_let_go_of_is_seen_to_have_room(make):
    trace = make.trace(make.session("s", (1000, 0, 11, 0.0), (1000, 15, 11, 60.0)))
    replay = fleet(trace, replicas=2, kv_blocks=17, decode_pin_s=20.0)
    assert replay.run().moves == 0, "home is empty again by then"


def test_one_that_is_back_is_probed_until_it_is_well(make):
    trace = make.trace(make.session("s", *[(1000, 0, 11, 1.0)] * 8))
    events = ["kill:p0@500ms", "kill:p1@501ms", "start:p0@1s", "start:p1@1s"]
    replay = fleet(trace, prefills=2, events=events)
    replay.run()
    assert {status.id: status.health for status in replay._engine.replicas(1e3)}["p1"] == "healthy"


def test_pairs_need_a_network_and_no_gateway(make):
    with pytest.raises(ValueError, match="pull_gbps"):
        fleet(two_turns(make), gbps=0.0)
    with pytest.raises(ValueError, match="gateway"):
        fleet(two_turns(make), gateway_tokens=1000)


def test_an_added_replica_says_by_its_name_what_it_does(make):
    with pytest.raises(ValueError, match="p9 prefills, r9 decodes"):
        fleet(two_turns(make), events=["add:pod7@3s"])
