from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.clock import ManualClock
from router.base.errors import ErrorKind
from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Candidate, Decision, Kind
from router.core.observe import Ended, HealthChange, Outcome, Usage
from router.core.request import EMPTY_CHAIN, Turn
from router.telemetry.recent import RecentDecisions

Decided = Callable[..., Decision]
MakeEnded = Callable[..., Ended]

# 2026-01-01T00:00:00Z when the monotonic clock reads 100.
NEW_YEAR = 1767225600.0


def recent(**options: int) -> RecentDecisions:
    return RecentDecisions(ManualClock(100.0), wall=lambda: NEW_YEAR, **options)


def test_a_decision_is_shown_with_its_bill_while_the_turn_runs(turn: Turn, decided: Decided) -> None:
    kept = recent()
    kept.on_decision(turn, decided("a", Kind.HOME, at=98.5))
    (shown,) = kept.newest(10)
    assert len(shown.pop("candidates")) == 2
    assert shown == {
        "id": 1,
        "time": "2025-12-31T23:59:58.500+00:00",
        "session": "k",
        "tenant": "",
        "path": "/v1/chat/completions",
        "model": "m",
        "replica": "a",
        "kind": "home",
        "reason": "owner on the ring",
        "policy": "home",
        "attempt": 0,
        "waited_ms": 0.0,
        "home": "a",
        "prompt_tokens": 120,
        "predicted_cached_tokens": 100,
        "pull": None,
        "options": None,
        "pair": None,
        "outcome": None,
        "delivered_cached_tokens": None,
        "delivered_prompt_tokens": None,
        "completion_tokens": None,
        "ttft_ms": None,
        "duration_ms": None,
    }


def test_the_end_of_a_turn_joins_its_decision(turn: Turn, decided: Decided, ended: MakeEnded) -> None:
    kept = recent()
    first, second = decided("a"), decided("b")
    kept.on_decision(turn, first)
    kept.on_decision(turn, second)
    kept.on_ended(ended(first, Outcome.COMPLETED, usage=Usage(150, 9, 96), ttft_s=0.0421, duration_s=1.5))
    newer, older = kept.newest(10)
    assert (newer["replica"], newer["outcome"]) == ("b", None)
    assert (older["replica"], older["outcome"]) == ("a", "completed")
    assert (older["delivered_prompt_tokens"], older["completion_tokens"]) == (150, 9)
    assert older["delivered_cached_tokens"] == 96
    assert (older["ttft_ms"], older["duration_ms"]) == (42.1, 1500.0)


def test_equal_decisions_of_two_turns_do_not_mix(turn: Turn, decided: Decided, ended: MakeEnded) -> None:
    kept = recent()
    first, second = decided(), decided()
    assert first == second
    kept.on_decision(turn, first)
    kept.on_decision(turn, second)
    kept.on_ended(ended(second, Outcome.CUT))
    assert [shown["outcome"] for shown in kept.newest(2)] == ["cut", None]


def test_a_refusal_is_shown_with_its_reason(turn: Turn) -> None:
    kept = recent()
    kept.on_refused(turn, ErrorKind.OVERLOADED, "every replica is full", 100.0)
    assert kept.newest(1) == [
        {
            "id": 1,
            "time": "2026-01-01T00:00:00.000+00:00",
            "session": "k",
            "tenant": "",
            "path": "/v1/chat/completions",
            "model": "m",
            "kind": "refused",
            "reason": "every replica is full",
            "refused": "overloaded",
        }
    ]


def test_the_newest_come_first_and_no_more_than_asked_for(turn: Turn, decided: Decided) -> None:
    kept = recent()
    for replica in "abc":
        kept.on_decision(turn, decided(replica))
    assert [shown["replica"] for shown in kept.newest(2)] == ["c", "b"]


def test_the_oldest_make_room_even_while_their_turns_run(
    turn: Turn, decided: Decided, ended: MakeEnded
) -> None:
    kept = recent(max_records=2)
    decisions = [decided(replica) for replica in "abc"]
    for decision in decisions:
        kept.on_decision(turn, decision)
    for decision in decisions:
        kept.on_ended(ended(decision))
    assert [(shown["replica"], shown["outcome"]) for shown in kept.newest(9)] == [
        ("c", "completed"),
        ("b", "completed"),
    ]


def test_long_bills_make_room_sooner_but_the_last_is_always_kept(turn: Turn, decided: Decided) -> None:
    kept = recent(max_records=100, max_candidates=10)
    for replica in "abc":
        kept.on_decision(turn, decided(replica, candidates=4))
    assert [shown["replica"] for shown in kept.newest(9)] == ["c", "b"]
    kept.on_decision(turn, decided("d", candidates=50))
    assert [shown["replica"] for shown in kept.newest(9)] == ["d"]


def test_the_end_of_a_turn_that_was_never_seen_is_ignored(decided: Decided, ended: MakeEnded) -> None:
    kept = recent()
    kept.on_ended(ended(decided()))
    assert kept.newest(1) == []


def test_a_brief_record_has_all_but_what_the_options_were(turn: Turn, decided: Decided) -> None:
    kept = recent()
    kept.on_decision(turn, decided())
    [brief], [full] = kept.newest(1, brief=True), kept.newest(1)
    assert full.keys() - brief.keys() == {"options", "candidates", "pair"}
    assert full | brief == full


def test_records_of_one_session_replica_or_kind_are_found(turn: Turn, decided: Decided) -> None:
    kept = recent()
    kept.on_decision(turn, decided("a", Kind.NEW))
    kept.on_decision(turn.replace(session=SessionKey("other")), decided("b"))
    kept.on_decision(turn.replace(session=None), decided("a", Kind.PASS))
    kept.on_refused(turn, ErrorKind.OVERLOADED, "full", 100.0)

    def ids(**of: str) -> list[object]:
        return [shown["id"] for shown in kept.newest(9, **of)]

    assert ids(session="k") == [4, 1]
    assert ids(session="kThe model's digits") == [4, 1]
    assert ids(replica="a") == [3, 1]
    assert ids(kind="refused") == [4]
    assert ids(kind="new", replica="a", session="k") == [1]
    assert ids(session="nobody") == []


def test_a_record_is_found_by_its_id_while_it_is_kept(turn: Turn, decided: Decided) -> None:
    kept = recent(max_records=2)
    assert kept.find(1) is None
    for replica in "abc":
        kept.on_decision(turn, decided(replica))
    found = kept.find(2)
    assert found is not None
    assert (found["replica"], len(found["candidates"])) == ("b", 2)
    assert kept.find(3)["replica"] == "c"
    assert [kept.find(serial) for serial in (-1, 0, 1, 4)] == [None] * 4


def test_workers_give_ids_that_differ_and_find_their_own(turn: Turn, decided: Decided) -> None:
    both = [recent(worker=number, workers=2) for number in range(2)]
    for kept in both:
        for _ in range(3):
            kept.on_decision(turn, decided())
    ids = [[record["id"] for record in kept.newest(9)] for kept in both]
    assert ids == [[6, 4, 2], [7, 5, 3]]
    for own, other, mine in ((both[0], both[1], ids[0]), (both[1], both[0], ids[1])):
        for number in mine:
            assert isinstance(number, int)
            found = own.find(number)
            assert found is not None
            assert found["id"] == number
            assert other.find(number) is None


def test_facts_about_replicas_are_not_decisions() -> None:
    kept = recent()
    a, b = ReplicaId("a"), ReplicaId("b")
    kept.on_health(HealthChange(a, "healthy", "down", "", 1.0))
    kept.on_restarted(a, 1.0)
    kept.on_moved(SessionKey("k"), a, b, 1.0)
    assert kept.newest(1) == []


def test_the_clock_that_was_set_moves_all_dates(turn: Turn, decided: Decided) -> None:
    walls = iter((NEW_YEAR, NEW_YEAR + 3600))
    kept = RecentDecisions(ManualClock(100.0), wall=lambda: next(walls))
    kept.on_decision(turn, decided(at=100.0))
    assert kept.newest(1)[0]["time"] == "2026-01-01T00:00:00.000+00:00"
    assert kept.newest(1)[0]["time"] == "2026-01-01T01:00:00.000+00:00"


def test_all_of_it_is_json(turn: Turn, decided: Decided) -> None:
    kept = recent()
    kept.on_decision(turn, decided(prices=(1.0, 2.0)))
    kept.on_refused(turn, ErrorKind.NO_REPLICAS, "none", 1.0)
    assert len(orjson.loads(orjson.dumps(kept.newest(9)))) == 2


def test_keeping_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        recent(max_records=0)


@given(st.lists(st.tuples(st.sampled_from(["decide", "refuse", "end"]), st.integers(0, 7)), max_size=60))
def test_no_order_of_facts_breaks_the_bounds(facts: list[tuple[str, int]]) -> None:
    asked = Turn("/p", "m", OPEN_TENANT, None, "", EMPTY_CHAIN)
    option = Candidate(ReplicaId("a"), 0, 0, 0, 0, None, None, 0.0, 0.0, None)
    kept = recent(max_records=5, max_candidates=12)
    running: list[Decision] = []
    for what, size in facts:
        if what == "decide":
            bill = (option,) * size
            decision = Decision(option.replica, Kind.NEW, "", "p", bill, None, None, 0, 0, 0, 1.0)
            running.append(decision)
            kept.on_decision(asked, decision)
        elif what == "refuse":
            kept.on_refused(asked, ErrorKind.OVERLOADED, "", 1.0)
        elif running:
            decision = running.pop(size % len(running))
            kept.on_ended(Ended(asked, decision, Outcome.COMPLETED, None, None, 1.0, 2.0))
        held = [record.decision for record in kept._records if record.decision is not None]
        assert len(kept._records) <= 5
        assert sum(len(decision.candidates) for decision in held) == kept._candidates
        assert kept._candidates <= 12 or len(kept._records) == 1
        assert set(kept._open) <= {id(decision) for decision in held}
