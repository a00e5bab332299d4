from collections.abc import Callable

import orjson
import pytest

from router.base.ids import ReplicaId
from router.core.decide import Decision, Kind
from router.core.price import Pull
from router.core.prices import Prices
from router.telemetry.bill import bill


def test_a_bill_names_every_option_with_its_price(decided: Callable[..., Decision]) -> None:
    fields = bill(decided("a", Kind.HOME, prices=(1.5, 2.5)))
    candidates = fields.pop("candidates")
    assert fields == {
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
        "pair": None,
        "options": None,
    }
    assert candidates == [
        {
            "replica": name,
            "price": price,
            "cached_tokens": cached,
            "host_tokens": 0,
            "in_flight": 1,
            "pending_tokens": 20,
            "working_set_tokens": 300,
            "capacity_tokens": None,
            "foreign": 0.5,
            "recent_failures": 0.0,
            "over": None,
            "free_tokens": None,
            "held_tokens": 0,
            "ahead_tokens": 0,
        }
        for name, price, cached in (("a", 1.5, 0), ("b", 2.5, 1))
    ]


def test_options_that_were_not_compared_have_no_price(decided: Callable[..., Decision]) -> None:
    candidates = bill(decided(prices=None))["candidates"]
    assert isinstance(candidates, list)
    assert [candidate["price"] for candidate in candidates] == [None, None]


def test_a_price_list_that_does_not_fit_is_an_error(decided: Callable[..., Decision]) -> None:
    with pytest.raises(ValueError, match="zip"):
        bill(decided(prices=(1.0,)))


def test_a_priced_decision_shows_each_option_with_its_terms_and_the_least_price_of_each_replica(
    decided: Callable[..., Decision],
) -> None:
    fields = bill(decided().replace(price_list=Prices(move_s=0.25)))
    options, candidates = fields["options"], fields["candidates"]
    assert isinstance(options, list)
    assert isinstance(candidates, list)
    assert [(option["replica"], option["way"], option["move_ms"]) for option in options] == [
        ("a", "local", 0.0),
        ("b", "local", 250.0),
    ]
    assert [candidate["price"] for candidate in candidates] == [option["price_ms"] for option in options]
    assert orjson.loads(orjson.dumps(fields)) == fields


def test_a_pull_is_named_with_its_source(decided: Callable[..., Decision]) -> None:
    pull = Pull(ReplicaId("b"), 4096, 0.5, 2.0, 0.9)
    assert bill(decided().replace(pull=pull))["pull"] == {"source": "b", "tokens": 4096}


def test_a_bill_is_json(decided: Callable[..., Decision]) -> None:
    assert orjson.loads(orjson.dumps(bill(decided(prices=(1.0, 2.0)))))["kind"] == "home"
