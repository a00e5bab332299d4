"""The books of pulls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import ReplicaId
from router.core.decide import Decision, Flight, Kind, Pulls
from router.core.estimate.pulls import Breaker
from router.core.holdings import AgentReport
from router.core.plan import PullRules
from router.core.price import Pull
from router.core.pullbook import PullBook, Pulled, pull_came

A, B, C = (ReplicaId(name) for name in "abc")
ALL = frozenset((A, B, C))


def seen(book: PullBook, now: float = 0.0) -> Pulls:
    view = book.view([(A, 5000)], ALL, now)
    assert view is not None
    return view


def whole(tokens: int, seconds: float, token_bytes: int = 100_000) -> Pulled:
    return Pulled(tokens, tokens * token_bytes, seconds, complete=True)


def test_before_any_pull_the_policys_seed_counts() -> None:
    view = seen(PullBook(PullRules(seed_gbps=80.0)))
    assert view.seed == pytest.approx((0.01, 1e-10))
    assert [(s.replica, s.cached_tokens, s.pulls, s.chance) for s in view.sources] == [(A, 5000, 0, 0.95)]
    assert (dict(view.inbound), dict(view.links), view.targets) == ({}, {}, ALL)


def learned(rules: PullRules | None = None) -> PullBook:
    """One that knows a path."""
    book = PullBook(rules or PullRules())
    book.begin(C, B, 0.0)
    book.end(C, B, 1, whole(10_000, 9.0), 0.0)
    return book


def test_until_a_path_is_known_one_pull_is_tried_at_a_time() -> None:
    book = PullBook(PullRules())
    book.begin(A, B, 0.0)
    assert book.view([(A, 5000)], ALL, 0.0) is None
    book.end(A, B, 1, whole(10_000, 9.0), 9.0)
    book.begin(A, B, 9.0)
    assert book.view([(A, 5000)], ALL, 9.0) is not None


def test_pulls_under_way_are_counted_at_both_ends_until_they_end() -> None:
    book = learned()
    assert book.begin(A, B, 0.0) == 1
    assert book.begin(A, C, 0.0) == 2
    view = seen(book)
    assert view.sources[0].pulls == 2
    assert dict(view.inbound) == {B: 1, C: 1}
    book.end(A, B, 1, None, 1.0)
    book.end(A, C, 2, None, 1.0)
    after = seen(book, 1.0)
    assert after.sources[0].pulls == 0
    assert dict(after.inbound) == {}
    # What was seen stays as it was.
    assert dict(view.inbound) == {B: 1, C: 1}


def test_a_source_at_its_budget_is_none() -> None:
    book = learned(PullRules(per_source=2))
    for _ in range(2):
        book.begin(A, B, 0.0)
    assert book.view([(A, 5000)], ALL, 0.0) is None
    assert book.view([(A, 5000), (C, 10)], ALL, 0.0) is not None


def test_what_is_on_its_way_is_told_of_where_no_source_is_left() -> None:
    book = learned(PullRules(per_source=1))
    book.begin(A, B, 0.0)
    flights = {B: Flight(A, 5000, 1.0, 0.9)}
    view = book.view([(A, 5000)], ALL, 0.0, flights)
    assert view is not None
    assert (view.sources, view.flights) == ((), flights)
    assert book.has_learned
    assert not PullBook(PullRules()).has_learned


def test_a_path_is_learned_as_if_it_had_been_alone() -> None:
    book = PullBook(PullRules())
    for _ in range(60):
        for tokens in (1000, 20_000):
            sharing = max(2, book.begin(A, B, 0.0))
            # 1 GB/s, of which it had half.
            book.end(A, B, sharing, whole(tokens, 0.005 + 2 * tokens * 1e-4), 0.0)
    view = seen(book)
    start_s, byte_s = view.links[(A, B)]
    assert start_s + 2e9 * byte_s == pytest.approx(2.0, rel=0.1)
    assert view.token_bytes == pytest.approx(100_000, rel=0.05)
    # Who is not known is taken for the last that was.
    assert view.seed == view.links[(A, B)]


def test_what_failed_lowers_the_chance_and_teaches_no_speed() -> None:
    book = PullBook(PullRules())
    book.begin(A, B, 0.0)
    book.end(A, B, 1, Pulled(0, 0, 2.0, complete=False), 2.0)
    view = seen(book, 2.0)
    assert view.sources[0].chance < 0.95
    assert dict(view.links) == {}


def test_a_source_that_fails_is_left_alone() -> None:
    book = PullBook(PullRules())
    for _ in range(20):
        book.begin(A, B, 0.0)
        book.end(A, B, 1, Pulled(0, 0, 2.0, complete=False), 1.0)
    assert book.view([(A, 5000)], ALL, 1.0) is None
    assert book.view([(A, 5000)], ALL, 7.0) is not None


def test_another_process_is_a_stranger() -> None:
    book = PullBook(PullRules())
    for source, target in ((A, B), (C, B)):
        book.begin(source, target, 0.0)
        book.end(source, target, 1, whole(10_000, 9.0), 9.0)
    book.forget(A)
    assert set(seen(book, 9.0).links) == {(C, B)}


@given(st.lists(st.tuples(st.sampled_from((A, B)), st.sampled_from((B, C)), st.booleans()), max_size=40))
def test_whatever_begins_and_ends_the_counts_balance(pulls: list[tuple[ReplicaId, ReplicaId, bool]]) -> None:
    book = PullBook(PullRules(per_source=100))
    open_: list[tuple[ReplicaId, ReplicaId, int]] = []
    for source, target, end in pulls:
        open_.append((source, target, book.begin(source, target, 0.0)))
        if end:
            book.end(*open_.pop(0), None, 0.0)
    for pull in open_:
        book.end(*pull, None, 0.0)
    view = book.view([(A, 1), (B, 1)], ALL, 0.0)
    assert view is not None
    assert [source.pulls for source in view.sources] == [0, 0]
    assert dict(view.inbound) == {}


def test_what_agents_say_of_their_pulls_is_learned() -> None:
    book = PullBook(PullRules())
    for _ in range(200):
        book.told(B, AgentReport(True, token_bytes=1000.0, bytes_per_s=((A, 5e9), (C, 0.0))))
    view = seen(book)
    start_s, byte_s = view.links[(A, B)]
    assert start_s + 5e9 * byte_s == pytest.approx(1.0, rel=0.1)
    assert view.token_bytes == pytest.approx(1000.0, rel=0.05)
    assert (C, B) not in view.links


def test_what_was_seen_from_without_teaches_what_the_path_carries() -> None:
    book = PullBook(PullRules())
    for _ in range(20):
        book.measured(A, B, 10_000, 1.0)
        book.measured(A, B, 40_000, 3.7)
    assert book.has_learned
    start_s, token_s = book.path(A, B)
    assert start_s + 20_000 * token_s == pytest.approx(1.9, rel=0.1)


def test_one_pull_shows_what_paths_carry_whatever_was_assumed() -> None:
    book = PullBook(PullRules(seed_gbps=25.0))
    book.begin(A, B, 0.0)
    # 6 Gb/s.
    book.end(A, B, 1, whole(10_000, 1.0 / 0.75), 2.0)
    view = seen(book, 2.0)
    assert 8e-9 / view.links[(A, B)][1] == pytest.approx(6.0, rel=0.1)
    assert view.seed == view.links[(A, B)]


def test_a_first_token_that_came_late_makes_no_path_slow() -> None:
    book = PullBook(PullRules(seed_gbps=25.0))
    before = book.path(A, B)[1]
    book.measured(A, B, 10_000, 100.0)
    assert before < book.path(A, B)[1] <= 1.55 * before


def test_how_turns_found_their_pulls_changes_the_chance() -> None:
    book = PullBook(PullRules())
    for _ in range(5):
        book.result(A, False, 0.0)
    low = seen(book).sources[0].chance
    assert low < 0.7
    book.result(A, True, 0.0)
    assert seen(book).sources[0].chance > low


def test_what_may_begin_is_asked_for_one_by_one() -> None:
    book = learned(PullRules(per_source=2))
    assert book.allows(A, 0.0)
    for _ in range(2):
        book.begin(A, B, 0.0)
    assert not book.allows(A, 0.0)
    assert book.allows(C, 0.0)
    book.end(A, B, 1, None, 1.0)
    assert book.allows(A, 1.0)
    unlearned = PullBook(PullRules())
    unlearned.begin(A, B, 0.0)
    assert not unlearned.allows(C, 0.0)


def test_nothing_is_kept_of_who_has_left_nor_of_what_is_told_of_it_later() -> None:
    book = learned()
    book.keep_only((A, B))
    assert dict(seen(book).links) == {}
    sharing = book.begin(A, B, 0.0)
    book.keep_only((B,))
    book.end(A, B, sharing, whole(10_000, 9.0), 9.0)
    book.result(A, False, 9.0)
    for _ in range(20):
        book.result(C, False, 9.0)
    book.told(B, AgentReport(True, bytes_per_s=((A, 5e9),)))
    assert not book.allows(A, 9.0)
    book.keep_only((A, B, C))
    view = book.view([(A, 5000), (C, 5000)], ALL, 9.0)
    assert view is not None
    assert [(source.pulls, source.chance) for source in view.sources] == [(0, 0.95)] * 2
    assert dict(view.links) == {}


def test_other_rules_count_from_now_on_and_what_was_learned_stays() -> None:
    book = PullBook(PullRules(seed_gbps=80.0))
    book.follow(PullRules(seed_gbps=8.0))
    assert seen(book).seed == pytest.approx((0.01, 1e-9))
    book = learned(PullRules(per_source=1))
    before = seen(book).seed
    book.begin(A, B, 0.0)
    assert not book.allows(A, 0.0)
    book.follow(PullRules(per_source=2, seed_gbps=1.0))
    assert book.allows(A, 0.0)
    assert seen(book).seed == before


def test_the_breakers_of_sources_that_were_thought_of_show() -> None:
    book = learned()
    assert book.breakers(0.0) == {C: Breaker.CLOSED}
    for _ in range(20):
        book.result(A, False, 0.0)
    assert book.breakers(1.0) == {A: Breaker.OPEN, C: Breaker.CLOSED}
    book.forget(A)
    assert book.breakers(1.0) == {C: Breaker.CLOSED}


@pytest.mark.parametrize(
    ("cached_tokens", "came"), [(2000, True), (1600, True), (1599, False), (500, False), (0, False)]
)
def test_a_pull_came_where_most_of_it_is_found(cached_tokens: int, came: bool) -> None:
    # 0 there already, 2000 to come.
    pull = Pull(A, 2000, 0.1, 2.0, 0.9)
    decision = Decision(
        B, Kind.PULL, "pull", "home", (), None, A, 3000, 2000, 0, 0.0, pull=pull
    )  # fmt: skip
    assert pull_came(decision, cached_tokens) is came
    # 500 more lie there.
    assert pull_came(decision.replace(cached_tokens=2500), cached_tokens + 500) is came
