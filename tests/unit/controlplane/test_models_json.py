import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.controlplane.models_json import parse_models
from router.core.fleet import ModelCard


def test_each_card_is_kept_as_the_replica_sent_it() -> None:
    body = b'{"object": "list", "data": [{"id":"m", "max_model_len" : 16384}, {"x":[1],"id":"lora"}]}'
    assert parse_models(body) == (
        ModelCard("m", b'{"id":"m", "max_model_len" : 16384}'),
        ModelCard("lora", b'{"x":[1],"id":"lora"}'),
    )


def test_an_empty_list_is_an_answer() -> None:
    assert parse_models(b'{"data": []}') == ()


def test_of_cards_with_one_id_the_first_is_kept() -> None:
    assert parse_models(b'{"data": [{"id":"m","n":1},{"id":"m","n":2}]}') == (
        ModelCard("m", b'{"id":"m","n":1}'),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data": null}',
        b'{"data": [1]}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": "m"}',
        b'{"data": [{"id": "m", "x": "\xff"}]}',
        b'{"data": [' + b"[" * 5000 + b"]" * 5000 + b"]}",
    ],
)
def test_anything_else_is_a_fault_in_words(body: bytes) -> None:
    with pytest.raises(ValueError, match="its model list cannot be read"):
        parse_models(body)


def test_a_list_longer_than_any_real_one_is_refused() -> None:
    with pytest.raises(ValueError, match="4097 entries"):
        parse_models(b'{"data": [' + b",".join([b'{"id":"m"}'] * 4097) + b"]}")


@given(st.binary())
def test_no_body_raises_anything_else(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_models(body)
