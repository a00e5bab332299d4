from router.base.ids import ReplicaId, SessionKey, TenantId
from router.controlplane.session_search import MOST_SEARCHED, ORDERS, Search, find_sessions
from router.core.session import Session, SessionTable


def table(*rows: tuple[str, str, str, str, int, int]) -> list[Session]:
    """Key, model, tenant, home, resident tokens, turns: the newest first."""
    of = SessionTable()
    for key, model, tenant, home, tokens, turns in reversed(rows):
        for _ in range(turns):
            of.bind(
                SessionKey(key),
                home=ReplicaId(home),
                epoch=0,
                resident_tokens=tokens,
                tail=0,
                reply_tokens=0,
                model=model,
                tenant=TenantId(tenant),
                source="",
                now=1.0,
            )
    return of.recent(99)


ROWS = table(
    ("aa1", "Qwen", "acme", "r0", 10, 3),
    ("bb2", "qwen", "beta", "r1", 30, 1),
    ("cc3", "llama", "acme", "r0", 20, 2),
)


def found(**search: object) -> tuple[list[str], int]:
    answer = find_sessions(lambda most: ROWS[:most], Search(**search))  # type: ignore[arg-type]
    return [session.key for session in answer.sessions], answer.matching


def test_without_a_wish_the_newest_come_a_page_at_a_time() -> None:
    assert found(limit=2) == (["aa1", "bb2"], 2)
    assert found(limit=2, offset=2) == (["cc3"], 3)
    assert found(offset=9) == ([], 3)


def test_a_part_of_key_model_or_tenant_finds_in_any_case() -> None:
    assert found(text="QWEN") == (["aa1", "bb2"], 2)
    assert found(text="acme") == (["aa1", "cc3"], 2)
    assert found(text="Bb") == (["bb2"], 1)
    assert found(text="<script>") == ([], 0)


def test_a_home_and_a_text_must_both_fit() -> None:
    assert found(home="r0") == (["aa1", "cc3"], 2)
    assert found(home="r0", text="llama") == (["cc3"], 1)
    assert found(home="r9") == ([], 0)


def test_every_order_begins_with_the_most() -> None:
    assert found(order="tokens")[0] == ["bb2", "cc3", "aa1"]
    assert found(order="turns")[0] == ["aa1", "cc3", "bb2"]
    assert found(order="moves")[0] == ["aa1", "bb2", "cc3"]
    for order in ORDERS:
        assert found(order=order)[1] == 3


def test_only_so_many_are_looked_at() -> None:
    asked: list[int] = []

    def latest(most: int) -> list[Session]:
        asked.append(most)
        return ROWS[:most]

    find_sessions(latest, Search(limit=1))
    answer = find_sessions(latest, Search(text="a", limit=1))
    assert asked == [1, MOST_SEARCHED]
    assert (answer.matching, answer.searched) == (3, 3)
