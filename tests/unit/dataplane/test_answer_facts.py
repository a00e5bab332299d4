"""What the JSON of an answer tells."""

import pytest
from msgspec import UNSET, Raw

from router.core.observe import Usage
from router.dataplane.answer_facts import facts_of, is_empty_list, text_of, usage_of, without_internal


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (b'{"prompt_tokens":3}', Usage(3)),
        (b'{"prompt_tokens":3,"completion_tokens":0,"prompt_tokens_details":null}', Usage(3, 0)),
        (b'{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}', Usage(3, None, 0)),
        (b'{"input_tokens":3,"output_tokens":1,"cache_read_input_tokens":null}', Usage(3, 1)),
        (
            b'{"input_tokens":3,"cache_creation_input_tokens":4,"cache_read_input_tokens":0}',
            Usage(7, None, 0),
        ),
        (b'{"input_tokens":3,"input_tokens_details":{"cached_tokens":2},"output_tokens":5}', Usage(3, 5, 2)),
        (b"{}", None),
        (b"null", None),
        (b"[]", None),
        (b'{"prompt_tokens":true}', None),
    ],
)
def test_usage_of_each_dialect(usage: bytes, expected: Usage | None) -> None:
    assert usage_of(usage) == expected


def test_what_is_not_reported_is_as_it_was_before() -> None:
    before = Usage(9, 1, 5)
    assert usage_of(UNSET, before) is before
    assert usage_of(b"null", before) is before
    assert usage_of(b'{"output_tokens":2}', before) == Usage(9, 2, 5)
    assert usage_of(b'{"prompt_tokens":8}', before) == Usage(8, 1, None)


def test_facts_are_of_objects_only() -> None:
    facts = facts_of(b'{"id":"a","choices":[ ],"other":1}')
    assert facts is not None
    assert text_of(facts.id) == "a"
    assert is_empty_list(facts.choices)
    assert not is_empty_list(facts.usage)
    assert facts_of(b"[]") is facts_of(b"{") is facts_of(UNSET) is facts_of(b"[" * 99_999) is None


def test_a_text_is_a_string_that_is_not_empty() -> None:
    assert text_of(Raw(b'"a"')) == "a"
    assert text_of(Raw(b'""')) is text_of(Raw(b"1")) is text_of(Raw(b"null")) is text_of(UNSET) is None


def test_internal_members_are_cut_at_the_top_and_in_the_answer_within() -> None:
    inner = b'{"kv_transfer_params":{"a":1},"id":"x","kv_transfer_params":[2]}'
    assert without_internal(b'{"kv_transfer_params":1,"response":%b,"a":%b}' % (inner, inner)) == (
        b'{"response":{"id":"x"},"a":%b}' % inner
    )


def test_internal_members_that_are_null_stay() -> None:
    text = b'{"message":{"kv_transfer_params":null},"kv_transfer_params":null}'
    assert without_internal(text) == text
