"""Session keys, and the table against a plain recount."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.base.ids import ReplicaId, SessionKey, TenantId
from router.core.session import Session, SessionTable, session_key

SECRET = b"0123456789abcdef"
A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


def tenant(name: str) -> TenantId:
    return TenantId(name)


def key(name: str) -> SessionKey:
    return session_key(SECRET, tenant("t"), name)


def bind(
    table: SessionTable, name: str, home: ReplicaId = A, *, now: float = 0.0, **over: Any
) -> tuple[Session, ReplicaId | None]:
    values: dict[str, Any] = {
        "epoch": 0,
        "resident_tokens": 100,
        "tail": 7,
        "reply_tokens": 5,
        "model": "m",
        "tenant": tenant("t"),
        "source": "x-session-id",
    }
    return table.bind(key(name), home=home, now=now, **(values | over))


# --- keys


def test_a_key_is_32_hex_digits_and_stable() -> None:
    assert session_key(b"secret", tenant("acme"), "agent-1") == "a3b51fc5fd8082926691a75d4fd287d6"


def test_a_text_id_and_its_bytes_are_one_id() -> None:
    assert session_key(SECRET, tenant("t"), "ä") == session_key(SECRET, tenant("t"), "ä".encode())


def test_another_secret_gives_another_key() -> None:
    assert session_key(b"one", tenant("t"), "id") != session_key(b"two", tenant("t"), "id")


def test_an_id_with_a_lone_surrogate_from_json_has_a_key() -> None:
    assert session_key(SECRET, tenant("t"), "\ud800") != session_key(SECRET, tenant("t"), "\ud801")


ids = st.text(max_size=6) | st.text("\0ab:", max_size=4)


@given(ids, ids, ids, ids)
@example("ab", "c", "a", "bc")
@example("", "abc", "abc", "")
@example("", "\0\0\0\0\0\0\0\1a", "", "a")
def test_two_pairs_of_tenant_and_id_never_share_a_key(t1: str, id1: str, t2: str, id2: str) -> None:
    same = session_key(SECRET, tenant(t1), id1) == session_key(SECRET, tenant(t2), id2)
    assert same == ((t1, id1) == (t2, id2))


# --- the table


def test_the_first_turn_makes_a_session() -> None:
    table = SessionTable()
    session, moved_from = bind(table, "s", A, now=3.0, epoch=2, resident_tokens=120, tail=9, reply_tokens=20)
    assert moved_from is None
    assert session == Session(
        key=key("s"),
        model="m",
        tenant=tenant("t"),
        home=A,
        home_epoch=2,
        resident_tokens=120,
        tail=9,
        reply_tokens=20,
        turns=1,
        moves=0,
        created_at=3.0,
        last_turn_at=3.0,
        source="x-session-id",
    )
    assert table.get(key("s"), now=3.0) is session


def test_later_turns_update_it_and_a_move_names_the_previous_home() -> None:
    table = SessionTable()
    bind(table, "s", A, now=1.0)
    _, stayed = bind(table, "s", A, now=2.0, resident_tokens=200)
    session, moved_from = bind(
        table,
        "s",
        B,
        now=5.0,
        epoch=4,
        resident_tokens=300,
        tail=8,
        reply_tokens=6,
        model="n",
        source="derived",
    )
    assert stayed is None
    assert moved_from == A
    assert (session.home, session.home_epoch, session.turns, session.moves) == (B, 4, 3, 1)
    assert (session.resident_tokens, session.tail, session.reply_tokens) == (300, 8, 6)
    assert (session.model, session.source) == ("n", "derived")
    assert (session.created_at, session.last_turn_at) == (1.0, 5.0)
    assert (table.working_set(A, 0).tokens, table.working_set(A, 0).sessions) == (0, 0)
    assert (table.working_set(B, 4).tokens, table.working_set(B, 4).sessions) == (300, 1)


def test_a_restart_at_home_is_no_move_and_counts_in_the_new_life_only() -> None:
    table = SessionTable()
    bind(table, "s", A, epoch=0, resident_tokens=500)
    bind(table, "other", A, epoch=0, resident_tokens=70)
    session, moved_from = bind(table, "s", A, epoch=1, resident_tokens=510)
    assert moved_from is None
    assert session.moves == 0
    assert table.working_set(A, 1).tokens == 510
    assert table.working_set(A, 0).tokens == 70
    assert table.working_set(A, 2).tokens == 0


def test_an_idle_session_is_absent_and_starts_anew_without_a_move() -> None:
    table = SessionTable(idle_s=30.0)
    bind(table, "s", A, now=0.0)
    assert table.get(key("s"), now=30.0) is not None
    assert table.get(key("s"), now=30.1) is None
    session, moved_from = bind(table, "s", B, now=31.0)
    assert moved_from is None
    assert (session.turns, session.moves, session.created_at) == (1, 0, 31.0)
    assert (table.working_set(A, 0).sessions, table.working_set(B, 0).sessions) == (0, 1)


def test_looking_is_not_a_turn() -> None:
    table = SessionTable(idle_s=30.0, max_sessions=2)
    bind(table, "old", now=0.0)
    bind(table, "new", now=1.0)
    table.get(key("old"), now=29.0)
    bind(table, "newest", now=29.0)
    assert table.get(key("old"), now=29.0) is None
    assert table.get(key("new"), now=29.0) is not None


def test_the_longest_without_a_turn_goes_when_the_table_is_full() -> None:
    table = SessionTable(max_sessions=2)
    bind(table, "a", now=0.0)
    bind(table, "b", now=1.0)
    bind(table, "a", now=2.0)
    bind(table, "c", now=3.0)
    assert [session.key for session in table.recent(10)] == [key("c"), key("a")]
    assert len(table) == 2
    assert table.working_set(A, 0).sessions == 2


def test_refuses_a_table_without_room() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SessionTable(max_sessions=0)


def test_expiry_drops_only_the_idle_and_no_more_than_asked() -> None:
    table = SessionTable(idle_s=10.0)
    for number in range(5):
        bind(table, f"s{number}", now=float(number))
    assert table.expire(now=10.0) == 0
    assert table.expire(now=13.5, limit=3) == 3
    assert table.expire(now=13.5, limit=3) == 1
    assert table.expire(now=13.5, limit=3) == 0
    assert [session.key for session in table.recent(9)] == [key("s4")]
    assert table.working_set(A, 0).tokens == 100
    assert table.expire(now=99.0) == 1
    assert table.expire(now=99.0) == 0


def test_a_turn_told_late_does_not_make_the_session_older_than_it_is() -> None:
    table = SessionTable(idle_s=10.0)
    bind(table, "a", now=20.0)
    session, _ = bind(table, "b", now=5.0)
    assert session.last_turn_at == 20.0
    assert table.expire(now=25.0) == 0


def test_a_report_at_the_end_of_the_turn_replaces_the_estimate() -> None:
    table = SessionTable()
    session, _ = bind(table, "s", A, epoch=1, tail=9, resident_tokens=100, reply_tokens=0)
    assert table.credit(key("s"), home=A, epoch=1, tail=9, resident_tokens=160, reply_tokens=30)
    assert (session.resident_tokens, session.reply_tokens, session.turns) == (160, 30, 1)
    assert table.working_set(A, 1).tokens == 160


@pytest.mark.parametrize("late", [{"home": B}, {"epoch": 0}, {"tail": 8}])
def test_a_report_of_a_turn_that_another_has_overtaken_changes_nothing(late: dict[str, Any]) -> None:
    table = SessionTable()
    bind(table, "s", A, epoch=1, tail=9, resident_tokens=100)
    report: dict[str, Any] = {"home": A, "epoch": 1, "tail": 9, "resident_tokens": 160, "reply_tokens": 30}
    assert not table.credit(key("s"), **(report | late))
    assert not table.credit(key("unknown"), **report)
    assert table.working_set(A, 1).tokens == 100


def test_forgetting_a_session_takes_it_out_of_the_working_set() -> None:
    table = SessionTable()
    bind(table, "s")
    forgotten = table.forget(key("s"))
    assert forgotten is not None
    assert forgotten.key == key("s")
    assert table.forget(key("s")) is None
    assert len(table) == 0
    assert table.working_set(A, 0).tokens == 0


def test_a_forgotten_replica_is_empty_at_once_and_its_sessions_count_again_with_their_next_turn() -> None:
    table = SessionTable()
    for name in ("s1", "s2", "s3"):
        bind(table, name, A, resident_tokens=100)
    bind(table, "elsewhere", B, resident_tokens=50)
    table.forget_replica(A)
    table.forget_replica(C)
    assert (table.working_set(A, 0).tokens, table.working_set(A, 0).sessions) == (0, 0)
    assert table.working_set(B, 0).tokens == 50
    kept = table.get(key("s1"), now=0.0)
    assert kept is not None
    assert kept.home == A
    _, moved_from = bind(table, "s1", A, resident_tokens=130)
    assert moved_from is None
    table.forget(key("s2"))  # counted before the replica was forgotten: takes nothing from the new sum
    bind(table, "s3", B, resident_tokens=10)
    assert (table.working_set(A, 0).tokens, table.working_set(A, 0).sessions) == (130, 1)
    assert table.working_set(B, 0).tokens == 60


def test_recent_lists_the_latest_turn_first() -> None:
    table = SessionTable()
    for name in ("a", "b", "c"):
        bind(table, name)
    bind(table, "a")
    assert [session.key for session in table.recent(2)] == [key("a"), key("c")]
    assert table.recent(0) == []


# --- any order of calls, against a recount


@dataclass
class Row:
    home: ReplicaId
    epoch: int
    tokens: int
    last: float
    counted: bool = True


@dataclass
class Model:
    """The table as a list of rows, oldest turn first."""

    room: int
    idle_s: float
    rows: dict[str, Row] = field(default_factory=dict)
    latest: float = float("-inf")

    def bind(self, name: str, home: ReplicaId, epoch: int, tokens: int, now: float) -> ReplicaId | None:
        self.latest = now = max(now, self.latest)
        old = self.rows.pop(name, None)
        self.rows[name] = Row(home, epoch, tokens, now)
        if len(self.rows) > self.room:
            del self.rows[next(iter(self.rows))]
        if old is None or now - old.last > self.idle_s or old.home == home:
            return None
        return old.home

    def expire(self, now: float, limit: int) -> int:
        idle = [name for name, row in self.rows.items() if now - row.last > self.idle_s][:limit]
        for name in idle:
            del self.rows[name]
        return len(idle)


NAMES = ("s", "t", "u", "v", "w")
HOMES = (A, B, C)
steps = st.one_of(
    st.tuples(
        st.just("bind"), st.sampled_from(NAMES), st.sampled_from(HOMES), st.integers(0, 2), st.integers(0, 99)
    ),
    st.tuples(st.just("credit"), st.sampled_from(NAMES), st.sampled_from(HOMES), st.integers(0, 99)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    st.tuples(st.just("forget_replica"), st.sampled_from(HOMES)),
    st.tuples(st.just("expire"), st.integers(0, 3)),
)


@given(st.lists(st.tuples(st.integers(-3, 8), steps), max_size=60))
def test_working_sets_always_equal_a_recount(script: list[tuple[int, tuple[Any, ...]]]) -> None:
    table, model = SessionTable(max_sessions=4, idle_s=10.0), Model(room=4, idle_s=10.0)
    now = 0.0
    for passed, step in script:
        now += passed
        match step:
            case ("bind", name, home, epoch, tokens):
                _, moved_from = bind(table, name, home, now=now, epoch=epoch, resident_tokens=tokens)
                assert moved_from == model.bind(name, home, epoch, tokens, now)
            case ("credit", name, home, tokens):
                row = model.rows.get(name)
                known = row is not None and (row.home, row.epoch) == (home, 0)
                assert known == table.credit(
                    key(name), home=home, epoch=0, tail=7, resident_tokens=tokens, reply_tokens=1
                )
                if row is not None and known:
                    row.tokens = tokens
            case ("forget", name):
                assert (table.forget(key(name)) is not None) == (model.rows.pop(name, None) is not None)
            case ("forget_replica", home):
                table.forget_replica(home)
                for row in model.rows.values():
                    row.counted = row.counted and row.home != home
            case ("expire", limit):
                assert table.expire(now, limit) == model.expire(now, limit)
        assert [session.key for session in table.recent(9)] == [key(name) for name in reversed(model.rows)]
        assert len(table) == len(model.rows)
        for home in HOMES:
            for epoch in range(3):
                living = [
                    row.tokens
                    for row in model.rows.values()
                    if row.counted and (row.home, row.epoch) == (home, epoch)
                ]
                assert table.working_set(home, epoch).tokens == sum(living)
                assert table.working_set(home, epoch).sessions == len(living)
    for name in NAMES:
        table.forget(key(name))
    for home in HOMES:
        table.forget_replica(home)
    assert table._working_sets == {}, "nothing may be left of replicas that are gone"


def test_sessions_are_forgotten_by_what_their_key_is_of() -> None:
    table = SessionTable()
    for name in ("one", "two", "three"):
        bind(table, name)
    gone = {key("one"), key("three")}
    forgotten = table.forget_all(SessionKey("x"), lambda each: SessionKey("x" if each in gone else "y"))
    assert {session.key for session in forgotten} == gone
    assert [session.key for session in table.recent(9)] == [key("two")]
    assert table.working_set(A, 0).sessions == 1
    assert table.forget_all(SessionKey("z"), lambda each: each) == []


def test_people_find_a_session_however_long_it_is_idle() -> None:
    table = SessionTable(idle_s=10.0)
    assert table.find(key("k")) is None
    session, _ = bind(table, "k", now=0.0)
    assert table.get(key("k"), 60.0) is None
    assert table.find(key("k")) is session
