"""The order in which held turns leave the queue, and what it counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import OPEN_TENANT, ReplicaId, TenantId
from router.core.claims import Pins
from router.core.decide import Decision, Kind
from router.core.fleet import ReplicaSpec, Report
from router.core.learned import Learned
from router.core.member import Member
from router.core.plan import QueueRules
from router.core.queue import TURN_TOKENS, Held, TurnQueue
from router.core.request import EMPTY_CHAIN, Turn
from router.core.session import WorkingSet

RULES = QueueRules(ageing=0.1)
ACME, BETA = TenantId("acme"), TenantId("beta")


def member(name: str = "a", capacity: int | None = None) -> Member:
    """Computes 8000 tokens a second, and holds a reply's KV for 5 s."""
    return Member(
        ReplicaSpec(ReplicaId(name), f"http://{name}:1", capacity),
        0,
        0,
        WorkingSet(),
        Learned(8000.0),
        Pins(),
    )


def decision(to: Member, missing: int, prompt: int | None = None) -> Decision:
    prompt = missing if prompt is None else prompt
    return Decision(to.id, Kind.HOME, "home", "p", (), None, None, prompt, prompt - missing, 0, 0.0)


@dataclass
class Bench:
    """A queue, and turns that are put into it in a few words."""

    queue: TurnQueue = field(default_factory=TurnQueue)

    def hold(
        self,
        to: Member,
        missing: int,
        *,
        prompt: int | None = None,
        now: float = 0.0,
        tenant: TenantId = OPEN_TENANT,
        lead_s: float = 0.0,
        wait_s: float = 300.0,
        size: int = 0,
        rules: QueueRules = RULES,
    ) -> Held | None:
        turn = Turn("/v1/x", "m", tenant, None, "", EMPTY_CHAIN)
        chosen = (decision(to, missing, prompt), to, 0)
        return self.queue.hold(turn, 0, rules, chosen, now=now, lead_s=lead_s, wait_s=wait_s, size=size)

    def order(self, of: Member, now: float = 0.0) -> list[int]:
        """What is missing of those that go, one after the other."""
        went = []
        while (held := self.queue.first(of, now)) is not None:
            self.queue.leave(held, now)
            self.queue.served(held.turn.tenant, held.tokens)
            went.append(held.tokens - TURN_TOKENS)
        return went


def test_the_least_missing_work_goes_first() -> None:
    bench, a = Bench(), member()
    for missing in (5000, 100, 90_000, 700):
        bench.hold(a, missing)
    assert bench.order(a) == [100, 700, 5000, 90_000]


def test_a_turn_is_passed_only_by_such_as_came_before_it_was_due() -> None:
    bench, a = Bench(), member()
    # 8000 tokens are a second of work: at an ageing of 0.1, ten seconds of waiting make up for it.
    bench.hold(a, 8000, now=0.0)
    bench.hold(a, 0, now=9.9)
    bench.hold(a, 0, now=10.1)
    bench.hold(a, 1, now=9.9)
    assert bench.order(a, now=20.0) == [0, 1, 8000, 0]


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 200_000)), min_size=1, max_size=40))
def test_nobody_who_comes_after_a_turn_is_due_passes_it(turns: list[tuple[float, int]]) -> None:
    bench, a = Bench(), member()
    held = [bench.hold(a, missing, now=at) for at, missing in sorted(turns)]
    left: list[Held] = []
    while (first := bench.queue.first(a, 2000.0)) is not None:
        bench.queue.leave(first, 2000.0)
        left.append(first)
    assert sorted(map(id, left)) == sorted(map(id, held))
    for at, each in enumerate(left):
        due = each.arrived + 1.01 * (each.tokens - TURN_TOKENS) / 8000.0 / RULES.ageing
        assert all(before.arrived <= due + 1e-6 for before in left[:at])


def test_the_share_of_kv_that_a_reply_will_hold_is_work_too() -> None:
    bench, a = Bench(), member(capacity=600_000)
    bench.hold(a, 700, prompt=300_000)
    bench.hold(a, 2000, prompt=20_000)
    # 700 ÷ 8000 + 5 s × ½ against 2000 ÷ 8000 + 5 s ÷ 30.
    assert bench.order(a) == [2000, 700]


def test_what_a_turn_takes_the_place_of_is_work_too() -> None:
    bench, a = Bench(), member(capacity=600_000)
    a.configure(a.spec)
    bench.hold(a, 30_000)
    a.working_set.tokens = 1_200_000
    bench.hold(a, 30_000, now=20.0)
    # 30,000 ÷ 8000 + 5 s ÷ 20 = 4 s, and 3.75 s more where all that is forgotten is wanted again.
    first, second = bench.queue.standing(a)
    assert (first.due, second.due) == pytest.approx((40.0, 97.5), rel=0.005)


def test_a_priority_counts_as_waiting_and_is_no_licence() -> None:
    bench, a = Bench(), member()
    bench.hold(a, 8000, lead_s=9.0, now=50.0)
    bench.hold(a, 1600, now=50.0)
    bench.hold(a, 400, now=50.0)
    bench.hold(a, 0, lead_s=-5.0, now=50.0)
    # Due at 51, 52, 50.5 and 55.
    assert bench.order(a, now=50.0) == [400, 8000, 1600, 0]


def test_tenants_take_turns_by_tokens_and_not_by_turns() -> None:
    bench, a = Bench(), member()
    for missing in (900, 901, 902):
        bench.hold(a, missing, tenant=ACME)
    for missing in (3000, 3001):
        bench.hold(a, missing, tenant=BETA)
    # By finish time in tokens, 128 for each turn: 1028, 2057, 3087 against 3128, 6257.
    assert bench.order(a) == [900, 901, 902, 3000, 3001]


def test_a_tenant_that_floods_is_passed_by_one_that_does_not() -> None:
    bench, a = Bench(), member()
    for _ in range(20):
        bench.hold(a, 1000, tenant=ACME, lead_s=1000.0)
    bench.hold(a, 1001, tenant=BETA)
    assert bench.order(a).index(1001) == 1


def test_a_tenant_that_was_away_saves_nothing_up() -> None:
    bench, a = Bench(), member()
    for _ in range(20):
        bench.hold(a, 1000, tenant=ACME)
    for _ in range(10):
        held = bench.queue.first(a, 0.0)
        assert held is not None
        bench.queue.leave(held, 0.0)
        bench.queue.served(ACME, held.tokens)
    for _ in range(5):
        bench.hold(a, 1001, tenant=BETA)
    # It was not there for ten turns: it gets every other one from now on, not the next five.
    assert bench.order(a)[:6] in ([1001, 1000] * 3, [1001, 1001, 1000, 1001, 1000, 1001])


def test_a_replica_has_room_up_to_its_horizon() -> None:
    bench, a = Bench(), member()
    bench.hold(a, 500)
    a.pending_tokens = 8192
    assert bench.order(a) == []
    a.pending_tokens = 8191
    assert bench.order(a) == [500]


def test_what_does_not_fit_is_passed_until_it_is_due_and_then_keeps_its_place() -> None:
    bench, a = Bench(), member(capacity=100_000)
    a.kv_tokens = 60_000
    a.note(Report(kv_usage=0.6), 0.0)
    big = bench.hold(a, 0, prompt=50_000)  # due after 5 s × ½ ÷ 0.1 = 25 s
    assert big is not None
    bench.hold(a, 10, prompt=30_000, now=24.0)
    assert bench.order(a, now=24.9) == [10]
    bench.hold(a, 20, prompt=30_000, now=26.0)
    assert bench.order(a, now=26.0) == []
    a.kv_tokens = 40_000
    assert bench.order(a, now=26.0) == [0, 20]


def test_one_tenants_turn_that_does_not_fit_holds_up_no_other_whose_turn_it_is() -> None:
    bench, a = Bench(), member(capacity=100_000)
    a.kv_tokens = 60_000
    a.note(Report(kv_usage=0.6), 0.0)
    bench.hold(a, 5000, prompt=50_000, tenant=ACME)
    bench.hold(a, 10, prompt=3000, tenant=BETA)
    assert bench.order(a, now=10_000.0) == [10]


def test_a_full_replica_is_given_nothing_however_many_wait() -> None:
    bench, a = Bench(), member(capacity=100_000)
    a.kv_tokens = 99_000
    a.note(Report(kv_usage=0.99), 0.0)
    for prompt in (50_000, 2000, 1001):
        bench.hold(a, 10, prompt=prompt)
    assert bench.order(a, now=1e6) == []
    bench.hold(a, 10, prompt=1000)
    assert bench.order(a) == [10]


@dataclass
class Full:
    """A queue of four turns, three of them of one tenant."""

    bench: Bench = field(default_factory=Bench)
    replica: Member = field(default_factory=member)
    rules: QueueRules = field(default_factory=lambda: QueueRules(most=4, most_bytes=1000))
    held: Mapping[str, Held | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = {
            "x": self.bench.hold(self.replica, 30, tenant=ACME, rules=self.rules, size=10),
            "y": self.bench.hold(self.replica, 10, tenant=ACME, rules=self.rules, size=10),
            "z": self.bench.hold(self.replica, 20, tenant=ACME, rules=self.rules, size=10),
            "u": self.bench.hold(self.replica, 5000, tenant=BETA, rules=self.rules, size=10),
        }


def test_a_full_queue_pushes_out_the_last_of_the_tenant_with_most() -> None:
    full = Full()
    assert full.bench.hold(full.replica, 9000, tenant=BETA, rules=full.rules) is not None
    assert full.bench.queue.pushed_out() == [full.held["x"]]
    assert full.bench.queue.pushed_out() == []
    assert len(full.bench.queue) == 4


def test_a_full_queue_takes_no_more_of_the_tenant_with_most() -> None:
    full = Full()
    assert full.bench.hold(full.replica, 0, tenant=ACME, rules=full.rules) is None
    assert full.bench.hold(full.replica, 9000, tenant=BETA, rules=full.rules) is not None
    assert full.bench.hold(full.replica, 9000, tenant=BETA, rules=full.rules) is None
    assert len(full.bench.queue) == 4


def test_bytes_are_bounded_as_turns_are() -> None:
    bench, a = Bench(), member()
    rules = QueueRules(most_bytes=1000)
    first = bench.hold(a, 10, tenant=ACME, rules=rules, size=900)
    assert bench.hold(a, 10, tenant=ACME, rules=rules, size=101) is None
    assert bench.hold(a, 10, tenant=BETA, rules=rules, size=101) is not None
    assert bench.queue.pushed_out() == [first]
    assert bench.queue.size == 101
    assert Bench().hold(a, 10, rules=rules, size=1001) is None


def test_nobody_is_pushed_out_for_a_turn_that_does_not_fit_all_the_same() -> None:
    bench, a = Bench(), member()
    rules = QueueRules(most_bytes=1000)
    bench.hold(a, 10, tenant=ACME, rules=rules, size=500)
    for _ in range(2):
        bench.hold(a, 10, tenant=BETA, rules=rules, size=200)
    # Without the first there would be room for 600.
    assert bench.hold(a, 10, tenant=OPEN_TENANT, rules=rules, size=700) is None
    assert bench.queue.pushed_out() == []
    assert len(bench.queue) == 3


def test_several_are_pushed_out_for_one_the_last_due_of_all_lines_first() -> None:
    bench, a, b = Bench(), member("a"), member("b")
    rules = QueueRules(most_bytes=1000)
    first = bench.hold(a, 10, tenant=ACME, rules=rules, size=300)
    last = bench.hold(b, 9000, tenant=ACME, rules=rules, size=300)
    middle = bench.hold(a, 900, tenant=ACME, rules=rules, size=300)
    assert bench.hold(a, 10, tenant=BETA, rules=rules, size=290) is not None
    assert bench.queue.pushed_out() == [last]
    assert bench.hold(a, 10, tenant=OPEN_TENANT, rules=rules, size=350) is not None
    assert bench.queue.pushed_out() == [middle]
    assert first is not None
    assert first.waiting


def test_what_left_long_before_its_time_was_up_is_not_kept_until_then() -> None:
    bench, a = Bench(), member()
    for _ in range(1000):
        held = bench.hold(a, 10, wait_s=300.0)
        assert held is not None
        bench.queue.leave(held, 0.0)
    assert len(bench.queue._deadlines) <= 65
    stays = bench.hold(a, 10, wait_s=50.0)
    for _ in range(200):
        held = bench.hold(a, 10, wait_s=20.0)
        assert held is not None
        bench.queue.leave(held, 0.0)
    assert bench.queue.wake_at() == 50.0
    assert bench.queue.expired(50.0) == [stays]


def test_time_is_up_once_and_in_order() -> None:
    bench, a = Bench(), member()
    late = bench.hold(a, 10, wait_s=20.0)
    soon = bench.hold(a, 20, wait_s=10.0)
    gone = bench.hold(a, 30, wait_s=5.0)
    assert gone is not None
    assert bench.queue.wake_at() == 5.0
    assert bench.queue.leave(gone, 1.0)
    assert not bench.queue.leave(gone, 1.0)
    assert bench.queue.wake_at() == 10.0
    assert bench.queue.expired(9.9) == []
    assert bench.queue.expired(30.0) == [soon, late]
    assert bench.queue.wake_at() is None
    assert (len(bench.queue), bench.queue.size, a.line) == (0, 0, None)


def test_a_turn_that_is_priced_anew_changes_its_line() -> None:
    bench, a, b = Bench(), member("a"), member("b")
    held = bench.hold(a, 1000)
    assert held is not None
    with bench.queue.aside(held):
        assert a.line is None
        held.chosen = (decision(b, 300), b, 0)
    assert bench.queue.members == (b,)
    assert b.line is not None
    assert b.line.tokens == held.tokens == 300 + TURN_TOKENS
    assert bench.queue.standing(b) == [held]
    assert bench.queue.standing(a) == []


def test_those_priced_longest_ago_come_first() -> None:
    bench, a = Bench(), member()
    first, second, third = (bench.hold(a, missing) for missing in (30, 20, 10))
    assert first is not None
    with bench.queue.aside(first):
        first.priced_at = 5.0
    assert bench.queue.longest_unpriced(2, 9.0) == [second, third]
    assert bench.queue.longest_unpriced(9, 4.0) == [second, third]
    assert bench.queue.longest_unpriced(9, 5.0) == [second, third, first]
    assert bench.queue.longest_unpriced(9, -1.0) == []


def test_a_line_knows_what_would_go_before_a_turn() -> None:
    bench, a = Bench(), member()
    for missing in (8000, 800, 80):
        bench.hold(a, missing)
    assert a.line is not None
    assert len(a.line) == 3
    assert a.line.tokens == 8880 + 3 * TURN_TOKENS
    assert a.line.ahead(0.0) == (0, 0)
    assert a.line.ahead(0.5) == (80 + TURN_TOKENS, 80)
    assert a.line.ahead(5.0) == (880 + 2 * TURN_TOKENS, 880)


def test_when_to_come_back_follows_the_rate_at_which_turns_leave() -> None:
    bench, a = Bench(), member()
    assert bench.queue.retry_after_s(0.0) == 1.0
    for _ in range(40):
        bench.hold(a, 10)
    assert bench.queue.retry_after_s(0.0) == 300.0
    for held in bench.queue.standing(a)[:30]:
        bench.queue.leave(held, 100.0)
    # Thirty left within the window of 15 s: the ten that are left take five.
    assert bench.queue.retry_after_s(100.0) == pytest.approx(5.0)
    assert bench.queue.retry_after_s(115.0) == pytest.approx(5.0 * 2.718281828)


def test_tenants_that_are_long_gone_are_forgotten() -> None:
    bench, a = Bench(), member()
    bench.hold(a, 100)
    for number in range(3000):
        bench.queue.served(TenantId(f"t{number}"), 100 + number)
    assert len(bench.queue._done) <= 1026


def test_nothing_is_carried_over_once_nobody_waits() -> None:
    bench, a = Bench(), member()
    for tenant in (ACME, ACME, BETA):
        bench.hold(a, 1000, tenant=tenant)
    bench.order(a)
    for missing, tenant in ((1000, ACME), (1001, BETA)):
        bench.hold(a, missing, tenant=tenant)
    assert bench.order(a) == [1000, 1001]


def test_those_that_have_waited_longest_are_shown_first() -> None:
    bench, a, b = Bench(), member(), member("b")
    for missing, to, now in ((5, a, 3.0), (4, b, 1.0), (3, a, 2.0), (2, b, 1.0)):
        bench.hold(to, missing, now=now)
    assert [held.tokens - TURN_TOKENS for held in bench.queue.longest_held(3)] == [4, 2, 3]
    assert bench.queue.longest_held(0) == []
