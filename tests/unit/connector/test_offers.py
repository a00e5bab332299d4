"""One attempt a request; nothing is offered that cannot be loaded, gains little or failed a moment ago."""

import pytest

from router.connector.failures import KEPT_S
from router.connector.offers import RENEW_S, Offers, Order, Stage, Verdict
from router.kv.keys import BlockHash
from router.kv.local import Found

HASHES = [BlockHash(bytes([number]) * 32) for number in range(10)]


def found(blocks: int, reason: str = "") -> Found:
    return Found(blocks, 0, "t", 0.15, 2.0, 0, reason)


def asked(request: str = "r") -> Offers:
    offers = Offers(min_blocks=2, headroom=1.5)
    assert offers.arrive(request, "t", HASHES)
    return offers


def offer(
    offers: Offers,
    answer: Found | None,
    *,
    computed: int = 0,
    room: int | None = 100,
    now: float = 0.0,
    request: str = "r",
) -> Verdict:
    return offers.offer(request, computed=computed, found=answer, room=room, now=now)


def test_an_answer_becomes_an_offer_and_the_offer_an_order() -> None:
    offers = asked()
    assert offer(offers, None) == Verdict(None)
    assert offer(offers, found(7), computed=3) == Verdict(4)
    assert offers.begin("r", 4, range(100, 110)) == Order(3, (103, 104, 105, 106))
    assert offers.stage("r") is Stage.LOADING
    assert offers.loaded("r") == range(3, 7)
    assert offers.loaded("r") is None


def test_a_prompt_of_too_few_blocks_is_not_asked_about() -> None:
    offers = Offers(min_blocks=2, headroom=1.5)
    assert not offers.arrive("r", "t", HASHES[:1])
    assert offer(offers, None) == Verdict(0, "spent")


def test_a_request_that_arrives_twice_is_asked_about_once() -> None:
    offers = asked()
    assert not offers.arrive("r", "t", HASHES)


@pytest.mark.parametrize(
    ("answer", "computed", "room", "reason"),
    [
        (None, 9, 100, "local"),
        (found(0), 0, 100, "absent"),
        (found(1), 0, 100, "absent"),
        (found(0, "timeout"), 0, 100, "timeout"),
        (found(7), 6, 100, "absent"),
        (found(7), 0, 10, "headroom"),
    ],
)
def test_why_nothing_is_offered(answer: Found | None, computed: int, room: int, reason: str) -> None:
    offers = asked()
    assert offer(offers, answer, computed=computed, room=room) == Verdict(0, reason)
    assert offers.stage("r") is Stage.SPENT
    assert offer(offers, found(10)) == Verdict(0, "spent")


def test_room_is_one_and_a_half_times_what_is_loaded_and_may_be_unknown() -> None:
    assert offer(asked(), found(7), room=11) == Verdict(7)
    assert offer(asked(), found(7), room=None) == Verdict(7)


def test_an_offer_stands_while_the_scheduler_has_no_room_and_follows_what_is_computed() -> None:
    offers, answer = asked(), found(7)
    assert offer(offers, answer) == Verdict(7)
    assert offer(offers, answer, computed=2, now=1.0) == Verdict(5)
    assert offers.begin("r", 5, range(100, 110)) == Order(2, (102, 103, 104, 105, 106))


def test_an_answer_that_grew_old_is_asked_for_anew() -> None:
    offers, answer = asked(), found(7)
    assert offer(offers, answer) == Verdict(7)
    assert offer(offers, answer, now=RENEW_S + 0.1) == Verdict(None, renew=True)
    assert offers.stage("r") is Stage.ASKED
    assert offer(offers, found(5), now=RENEW_S + 0.2) == Verdict(5)


def test_after_its_one_attempt_a_request_computes() -> None:
    offers = asked()
    offer(offers, found(7))
    offers.begin("r", 7, range(10))
    assert offer(offers, found(7)) == Verdict(0, "spent")
    offers.loaded("r")
    assert offer(offers, found(7)) == Verdict(0, "spent")
    assert offers.begin("r", 7, range(10)) is None


def test_an_offer_that_the_scheduler_declines_is_spent() -> None:
    offers = asked()
    offer(offers, found(7))
    assert offers.begin("r", 0, ()) is None
    assert offers.stage("r") is Stage.SPENT


def test_what_was_not_offered_is_not_loaded() -> None:
    offers = asked()
    assert offers.begin("r", 3, range(10)) is None
    offer(offers, found(7))
    assert offers.begin("r", 8, range(10)) is None
    offers = asked()
    offer(offers, found(7))
    assert offers.begin("r", 7, range(5)) is None
    assert offers.begin("unknown", 7, range(10)) is None


def test_a_block_that_failed_ends_the_prefix_for_others_for_a_while() -> None:
    offers = asked()
    offer(offers, found(7))
    offers.begin("r", 7, range(100, 107))
    offers.failed({105, 106, 999}, 0.0)
    assert offers.loaded("r") == range(5)
    offers.arrive("s", "t", HASHES)
    assert offer(offers, found(7), request="s", now=1.0) == Verdict(5)
    offers.arrive("u", "t", HASHES)
    assert offer(offers, found(7), request="u", computed=4, now=1.0) == Verdict(0, "failed-before")
    offers.arrive("v", "t", HASHES)
    assert offer(offers, found(7), request="v", now=KEPT_S) == Verdict(7)


def test_failures_of_blocks_that_nobody_loads_are_nobodys() -> None:
    offers = asked()
    offer(offers, found(7))
    offers.failed({1}, 0.0)
    offers.failed(frozenset(), 0.0)
    assert offer(offers, found(7)) == Verdict(7)


def test_a_request_that_ends_leaves_nothing() -> None:
    offers = asked()
    offer(offers, found(7))
    assert offers.found("r") == found(7)
    assert offers.end("r") is Stage.OFFERED
    assert offers.end("r") is None
    assert len(offers) == 0
    assert offers.found("r") is None
    assert offers.stage("r") is None
