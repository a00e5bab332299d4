"""Answers less their lists of token ids."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dataplane.abridged import Abridged, abridged

LONG = list(range(1000, 1200))

KEYS = st.sampled_from(
    [
        *("token_ids", "prompt_token_ids", "my_token_ids", 'x"token_ids', 'x"prompt_token_ids', "\\"),
        *("token_ids:", "remote_block_ids", "block_ids", 'x"remote_block_ids'),
    ]
)
TEXTS = st.sampled_from(
    ['"token_ids":[1,2]', 'token_ids":[', "]", '\\"token_ids":[', "~token-ids~", '"~token-ids~0"', ""]
)
VALUES = st.recursive(
    st.one_of(st.just(LONG), st.just([1, 2]), st.just([LONG, LONG]), TEXTS, st.none()),
    lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=4), st.lists(inner, max_size=3)),
    max_leaves=8,
)


@given(VALUES, st.booleans())
def test_what_was_taken_out_is_what_is_put_back(value: Any, apart: bool) -> None:
    body = json.dumps(value, separators=(", ", ": ") if apart else (",", ":")).encode()
    brief = abridged(body)
    assert brief.restored(brief.text) == body
    # What is left is sound, and differs in nothing but the lists.
    assert marked(json.loads(brief.text)) == marked(value) or not brief.lists
    assert all(json.loads(one) == LONG for one in brief.lists)


def marked(value: Any) -> Any:
    """The value with the same in the place of each list of its kind and of each mark."""
    if isinstance(value, dict):
        return {key: told(key, one) for key, one in value.items()}
    return [marked(one) for one in value] if isinstance(value, list) else value


def told(key: str, value: Any) -> Any:
    if key in ("token_ids", "prompt_token_ids") and is_taken(value):
        return ""
    if key == "remote_block_ids" and isinstance(value, list) and value and is_taken(value[0]):
        return ["", *marked(value[1:])]
    return marked(value)


def is_taken(value: Any) -> bool:
    return value == LONG or (isinstance(value, str) and value.startswith("~token-ids~"))


def test_the_lists_of_an_answer_are_taken_out() -> None:
    body = json.dumps({"choices": [{"token_ids": LONG, "n": [1]}], "prompt_token_ids": LONG}).encode()
    brief = abridged(body)
    assert brief.lists == (json.dumps(LONG).encode(),) * 2
    assert json.loads(brief.text) == {
        "choices": [{"token_ids": "~token-ids~0", "n": [1]}],
        "prompt_token_ids": "~token-ids~1",
    }


@pytest.mark.parametrize("others", [[], [[1, 2]], [LONG]])
def test_of_lists_of_blocks_the_first_is_taken_out(others: list[list[int]]) -> None:
    params = {"remote_block_ids": [LONG, *others], "remote_num_tokens": 5}
    body = json.dumps({"kv_transfer_params": params}).encode()
    brief = abridged(body)
    assert brief.lists == (json.dumps(LONG).encode(),)
    assert json.loads(brief.text)["kv_transfer_params"] == {
        **params,
        "remote_block_ids": ["~token-ids~0", *others],
    }
    assert brief.restored(brief.text) == body


@pytest.mark.parametrize(
    "value",
    [
        {"token_ids": [1, 2]},
        {"tokens": LONG},
        {"my_token_ids": LONG},
        {"remote_block_ids": LONG},
        {"remote_block_ids": [[1, 2]]},
        {"block_ids": [LONG]},
        {"token_ids": [LONG]},
        {'x"remote_block_ids': [LONG]},
        {'x"token_ids': LONG},
        {'x"prompt_token_ids': LONG},
        {"text": '"token_ids":' + json.dumps(LONG)},
        # Whoever writes the marks is read whole.
        {"token_ids": LONG, "text": "~token-ids~0"},
    ],
)
def test_all_else_stays(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    assert abridged(body) == Abridged(body, ())


@pytest.mark.parametrize("body", [b'token_ids":[' + b"1," * 200 + b"]", b'"token_ids":[' + b"1," * 200])
def test_what_is_no_json_is_left_to_whoever_reads_it(body: bytes) -> None:
    assert abridged(body) == Abridged(body, ())
