from collections.abc import Callable

import orjson
from hypothesis import given
from hypothesis import strategies as st

from router.base.clock import ManualClock
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.observe import Ended, Outcome, Usage
from router.core.price import Pull
from router.core.request import EMPTY_CHAIN, Turn
from router.telemetry.timelines import Timelines

Decided = Callable[..., Decision]
MakeEnded = Callable[..., Ended]

# 2026-01-01T00:00:00Z when the monotonic clock reads 100.
NEW_YEAR = 1767225600.0
K = SessionKey("k")


def timelines(**options: int) -> Timelines:
    return Timelines(ManualClock(100.0), wall=lambda: NEW_YEAR, **options)


def test_turns_on_one_replica_are_one_stay(decided: Decided, ended: MakeEnded) -> None:
    kept = timelines()
    kept.on_ended(ended(decided("a", Kind.NEW, at=90.0), usage=Usage(100, 5, 0), ttft_s=0.2))
    kept.on_ended(ended(decided("a", Kind.HOME, at=95.0), usage=Usage(200, 5, 96), ttft_s=0.05))
    told = kept.of(K)
    assert told is not None
    assert told["stays"] == [
        {
            "replica": "a",
            "kind": "new",
            "reason": "owner on the ring",
            "home": "a",
            "pulled_from": None,
            "since": "2025-12-31T23:59:50.000+00:00",
            "until": "2025-12-31T23:59:56.000+00:00",
            "turns": 2,
            "prompt_tokens": 300,
            "cached_tokens": 96,
        }
    ]
    assert told["turns"][1] == {
        "time": "2025-12-31T23:59:55.000+00:00",
        "replica": "a",
        "kind": "home",
        "outcome": "completed",
        "prompt_tokens": 200,
        "predicted_cached_tokens": 100,
        "delivered_cached_tokens": 96,
        "waited_ms": 0.0,
        "ttft_ms": 50.0,
    }
    orjson.dumps(told)


def test_a_move_begins_a_stay_with_its_reason(decided: Decided, ended: MakeEnded) -> None:
    kept = timelines()
    pull = Pull(ReplicaId("a"), 500, 0.1, 2.0, 0.9)
    kept.on_ended(ended(decided("a", Kind.NEW)))
    kept.on_ended(ended(decided("b", Kind.PULL).replace(pull=pull, reason="costs least")))
    kept.on_ended(ended(decided("a", Kind.SPILL)))
    stays = kept.of(K)["stays"]
    assert [(stay["replica"], stay["kind"], stay["pulled_from"]) for stay in stays] == [
        ("a", "new", None),
        ("b", "pull", "a"),
        ("a", "spill", None),
    ]
    assert stays[1]["reason"] == "costs least"


def test_a_turn_that_failed_or_was_left_is_shown_and_moves_nobody(decided: Decided, ended: MakeEnded) -> None:
    kept = timelines()
    kept.on_ended(ended(decided("a")))
    kept.on_ended(ended(decided("b"), Outcome.DIED))
    kept.on_ended(ended(decided("b"), Outcome.CANCELLED))
    told = kept.of(K)
    assert [stay["replica"] for stay in told["stays"]] == ["a"]
    assert [turn["outcome"] for turn in told["turns"]] == ["completed", "died", "cancelled"]


def test_turns_without_a_session_or_a_prompt_to_compute_are_left_out(
    decided: Decided, ended: MakeEnded
) -> None:
    kept = timelines()
    one = ended(decided())
    kept.on_ended(one.replace(turn=one.turn.replace(session=None)))
    kept.on_ended(one.replace(turn=one.turn.replace(computes=False)))
    assert len(kept) == 0
    assert kept.of(K) is None


def test_of_a_long_life_the_last_stays_are_kept_and_the_others_counted(
    decided: Decided, ended: MakeEnded
) -> None:
    kept = timelines()
    for number in range(100):
        kept.on_ended(ended(decided("ab"[number % 2], Kind.SPILL, at=float(number))))
    told = kept.of(K)
    assert (len(told["stays"]), told["forgotten_stays"]) == (32, 68)
    assert len(told["turns"]) == 24


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.booleans()), max_size=80))
def test_the_books_agree_with_what_is_kept(turns: list[tuple[int, str, bool]]) -> None:
    kept = timelines(max_entries=40)
    for session, replica, well in turns:
        asked = Turn("/p", "m", OPEN_TENANT, SessionKey(f"s{session}"), "", EMPTY_CHAIN)
        decision = Decision(ReplicaId(replica), Kind.HOME, "", "p", (), None, None, 9, 3, 0, 1.0)
        outcome = Outcome.COMPLETED if well else Outcome.CUT
        kept.on_ended(Ended(asked, decision, outcome, None, None, 1.0, 2.0))
        assert kept.of(SessionKey(f"s{session}")) is not None
        entries = sum(lived.entries for lived in kept._sessions.values())
        assert entries == kept._entries
        assert entries <= 40 or len(kept) == 1
