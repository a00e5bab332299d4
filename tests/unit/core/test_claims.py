"""What decode replicas offer: taken once, in time, in their replica's life, or let go of."""

from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import ReplicaId, SessionKey
from router.core.claims import Claim, Claims
from router.core.token_ids import TokenIds

D, E = ReplicaId("d"), ReplicaId("e")
S, T = SessionKey("s"), SessionKey("t")


def claim(replica: ReplicaId = D, *, tokens: int = 4, expires_at: float = 10.0, epoch: int = 1) -> Claim:
    return Claim(replica, epoch, "m", TokenIds(b"7," * tokens, tokens), 1, b"{}", expires_at, tokens)


def dropped(claims: Claims, now: float = 1.0) -> list[Claim]:
    """All that is to be let go of."""
    found: list[Claim] = []
    while (one := claims.next_dropped(now)) is not None:
        found.append(one)
    return found


def test_a_claim_is_taken_once() -> None:
    claims = Claims()
    mine = claim()
    claims.put(S, mine)
    assert claims.peek(S, 1.0) is mine
    assert claims.peek(T, 1.0) is None
    assert claims.take(S, 1.0) is mine
    assert claims.take(S, 1.0) is None
    assert (len(claims), claims.tokens, dropped(claims)) == (0, 0, [])


def test_one_whose_time_is_up_is_not_taken_and_let_go_of_unless_that_is_long_ago() -> None:
    claims = Claims()
    claims.put(S, claim(expires_at=10.0))
    assert claims.peek(S, 10.0) is None
    assert claims.take(S, 10.0) is None
    claims.put(T, claim(expires_at=10.0))
    claims.expire(10.0)
    assert (len(claims), claims.tokens) == (0, 0)
    # Their replica keeps them for longer than that.
    assert len(dropped(claims, 19.9)) == 2
    claims.put(S, claim(expires_at=10.0))
    claims.expire(20.0)
    assert dropped(claims, 20.0) == []


def test_what_a_later_turn_leaves_takes_the_place_of_the_earlier_which_is_let_go_of_once() -> None:
    claims = Claims()
    first, second = claim(), claim(tokens=6)
    claims.put(S, first)
    claims.put(S, second)
    assert dropped(claims) == [first]
    assert dropped(claims) == []
    assert claims.peek(S, 1.0) is second
    assert claims.tokens == 6


def test_one_that_was_not_used_is_put_back_unless_there_is_a_later_one() -> None:
    claims = Claims()
    mine, later = claim(), claim()
    claims.put(S, mine)
    assert claims.take(S, 1.0) is mine
    claims.restore(S, mine)
    assert claims.take(S, 1.0) is mine
    claims.put(S, later)
    claims.restore(S, mine)
    assert claims.peek(S, 1.0) is later
    assert dropped(claims) == [mine]


def test_a_session_that_ends_and_a_claim_that_is_of_no_use_are_let_go_of() -> None:
    claims = Claims()
    mine, other = claim(), claim()
    claims.put(S, mine)
    assert claims.end_session(S)
    assert not claims.end_session(S)
    claims.drop(other)
    assert dropped(claims) == [mine, other]
    claims.put(S, mine)
    claims.put(T, other)
    claims.end_sessions(lambda key: key == T)
    assert dropped(claims) == [other]


def test_with_its_replica_a_claim_is_gone_without_a_trace() -> None:
    claims = Claims()
    kept = claim(E)
    claims.put(S, claim(D))
    claims.put(T, kept)
    claims.drop(claim(D))
    claims.forget_replica(D)
    assert claims.peek(S, 1.0) is None
    assert claims.peek(T, 1.0) is kept
    assert dropped(claims) == []


def test_a_replica_that_needs_its_blocks_loses_its_oldest_claim() -> None:
    claims = Claims()
    oldest, other = claim(D), claim(D)
    claims.put(S, oldest)
    claims.put(T, other)
    assert claims.shed(E, 0.0) == 0
    assert claims.shed(D, 0.0) == 1
    assert dropped(claims) == [oldest]
    assert claims.peek(T, 1.0) is other


def test_as_many_claims_go_as_have_the_tokens_that_are_needed() -> None:
    claims = Claims()
    put = [claim(D, tokens=5), claim(E, tokens=50), claim(D, tokens=7), claim(D, tokens=2)]
    for number, one in enumerate(put):
        claims.put(SessionKey(f"s{number}"), one)
    assert claims.shed(D, 5.5) == 2
    assert dropped(claims) == [put[0], put[2]]
    assert claims.shed(D, 1e9) == 1
    assert dropped(claims) == [put[3]]
    assert (len(claims), claims.tokens) == (1, 50)


def test_of_more_than_it_may_hold_the_oldest_goes() -> None:
    claims = Claims(most_bytes=20)
    first = claim(tokens=6)
    claims.put(S, first)
    claims.put(T, claim(tokens=5))
    assert claims.peek(S, 1.0) is None
    assert dropped(claims) == [first]
    assert claims.tokens == 5
    too_large = claim(tokens=11)
    claims.put(S, too_large)
    assert (len(claims), claims.tokens) == (0, 0)
    assert too_large in dropped(claims)


def test_what_is_dropped_waits_until_somebody_asks_for_it_one_by_one() -> None:
    claims = Claims()
    put = [claim(expires_at=10.0 + number) for number in range(9)]
    for one in put:
        claims.refuse(one)
    claims.expire(1.0)
    assert [claims.next_dropped(1.0) for _ in range(4)] == put[:4]
    claims.expire(2.0)
    # The fifth's time was up long before: there is nothing to let go of.
    assert claims.next_dropped(24.0) is put[5]
    assert dropped(claims) == put[6:]


def test_of_what_is_dropped_no_more_than_a_thousand_wait_and_the_oldest_go() -> None:
    claims = Claims()
    pins = claims.pins(D, 1)
    put = [claim(tokens=2) for _ in range(1100)]
    for one in put:
        claims.refuse(one)
    assert pins.tokens == 2 * 1024
    assert list(map(id, dropped(claims))) == list(map(id, put[-1024:]))
    assert pins.tokens == 0


def test_what_is_dropped_already_counts_for_a_replica_that_needs_its_blocks() -> None:
    claims = Claims()
    put = [claim(D, tokens=5), claim(D, tokens=7), claim(E, tokens=9), claim(D, tokens=3)]
    for number, one in enumerate(put):
        claims.put(SessionKey(f"s{number}"), one)
    assert claims.shed(D, 4.0) == 1
    assert claims.shed(D, 5.0) == 0
    assert claims.shed(D, 6.0) == 1
    assert claims.shed(E, 1.0) == 1
    assert dropped(claims) == [put[0], put[1], put[2]]
    assert claims.shed(D, 1.0) == 1


def test_a_replica_keeps_the_kv_of_a_claim_until_it_is_fetched_let_go_of_or_out_of_time() -> None:
    claims = Claims()
    pins, others = claims.pins(D, 1), claims.pins(E, 1)
    claims.put(S, claim(D, tokens=4))
    claims.put(T, claim(E, tokens=50))
    assert (pins.tokens, others.tokens) == (4, 50)
    taken = claims.take(S, 1.0)
    assert taken is not None
    assert pins.tokens == 4  # it is on its way
    claims.restore(S, taken)
    assert pins.tokens == 4
    assert claims.take(S, 1.0) is taken
    claims.fetched(taken)
    assert pins.tokens == 0
    claims.put(S, claim(D, tokens=6))
    claims.put(S, claim(D, tokens=7))
    assert pins.tokens == 13  # nobody has told the replica yet
    assert claims.next_dropped(1.0) is not None
    assert pins.tokens == 7
    claims.end_session(S)
    assert pins.tokens == 7
    assert claims.next_dropped(99.0) is None
    assert pins.tokens == 0
    claims.put(S, claim(D, tokens=8))
    assert claims.take(S, 99.0) is None
    assert pins.tokens == 8  # until it is let go of, or found to be long out of time
    assert claims.next_dropped(999.0) is None
    assert pins.tokens == 0
    claims.put(S, claim(D, tokens=9))
    claims.expire(999.0)
    assert (pins.tokens, others.tokens) == (9, 50)
    assert claims.next_dropped(999.0) is None
    assert (pins.tokens, others.tokens) == (0, 0)


def test_another_life_of_a_replica_keeps_nothing() -> None:
    claims = Claims()
    claims.pins(D, 1)
    claims.put(S, claim(D))
    taken = claims.take(S, 1.0)
    assert taken is not None
    claims.put(T, claim(D))
    claims.forget_replica(D)
    pins = claims.pins(D, 2)
    claims.fetched(taken)
    claims.refuse(claim(D))
    assert pins.tokens == 0
    claims.put(S, claim(D, epoch=2))
    assert pins.tokens == 4


@given(st.lists(st.tuples(st.sampled_from("ptresfudx"), st.sampled_from("ab"), st.integers(1, 30))))
def test_no_claim_is_ever_had_twice(steps: list[tuple[str, str, int]]) -> None:
    """Whatever happens in whatever order: each is taken or let go of at most once, and tokens add up."""
    claims = Claims(most_bytes=120)
    pins = claims.pins(D, 1)
    made: list[Claim] = []  # kept, so that no two have the same identity
    had: list[int] = []
    held: dict[str, Claim] = {}
    for step, name, tokens in steps:
        key = SessionKey(name)
        if step == "p":
            made.append(claim(tokens=tokens))
            claims.put(key, made[-1])
        elif step == "x":
            made.append(claim(tokens=tokens))
            claims.refuse(made[-1])
        elif step == "t" and name not in held and (taken := claims.take(key, 1.0)) is not None:
            held[name] = taken
        elif step == "r" and name in held:
            claims.restore(key, held.pop(name))
        elif step == "u" and name in held:
            had.append(id(held[name]))
            claims.fetched(held.pop(name))
        elif step == "d" and name in held:
            claims.drop(held.pop(name))
        elif step == "e":
            claims.end_session(key)
        elif step == "s":
            claims.shed(D, tokens)
        elif step == "f" and (one := claims.next_dropped(1.0)) is not None:
            had.append(id(one))
        assert pins.tokens == sum(one.held_tokens for one in made if id(one) not in had)
    had += [*map(id, held.values()), *map(id, dropped(claims))]
    for name in "ab":
        if (left := claims.take(SessionKey(name), 1.0)) is not None:
            had.append(id(left))
    assert sorted(had) == sorted(map(id, made))
    assert (len(claims), claims.tokens) == (0, 0)
