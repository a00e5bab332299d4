"""The simulated tokenizer and the chain of block hashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.simulator import tokens

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(texts)
def test_a_text_comes_back_from_its_tokens(text: str) -> None:
    encoded = tokens.encode(text)
    assert len(encoded) % tokens.TOKEN_BYTES == 0
    assert tokens.decode(encoded) == text


@given(texts)
def test_ids_and_tokens_say_the_same(text: str) -> None:
    encoded = tokens.encode(text)
    ids = tokens.to_ids(encoded)
    assert len(ids) == tokens.count(encoded)
    assert tokens.from_ids(ids) == encoded


@given(texts)
def test_no_text_has_the_tokens_of_a_marker(text: str) -> None:
    encoded = tokens.encode(text)
    pieces = {encoded[at : at + 4] for at in range(0, len(encoded), 4)}
    assert pieces.isdisjoint({tokens.USER, tokens.ASSISTANT, tokens.END, tokens.CALL})


def test_markers_show_by_name() -> None:
    assert tokens.decode(tokens.USER + tokens.encode("hello") + tokens.END) == "<|usr|>hello<|end|>"


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_an_id_out_of_range_is_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="not a token id"):
        tokens.from_ids([1, bad])


def test_only_full_blocks_have_hashes() -> None:
    start = tokens.root("m")
    assert len(tokens.block_hashes(start, b"abcd" * 33, 16)) == 2
    assert tokens.block_hashes(start, b"abcd" * 15, 16) == []


def test_a_hash_stands_for_its_block_and_all_before_it() -> None:
    start = tokens.root("m")
    one = tokens.block_hashes(start, b"aaaa" * 16 + b"bbbb" * 16 + b"cccc" * 16, 16)
    two = tokens.block_hashes(start, b"aaaa" * 16 + b"XXXX" * 16 + b"cccc" * 16, 16)
    assert one[0] == two[0]
    assert one[1] != two[1]
    assert one[2] != two[2]


def test_model_salt_and_lora_never_share_a_block() -> None:
    roots = [
        tokens.root("m"),
        tokens.root("n"),
        tokens.root("m", salt="t"),
        tokens.root("m", salt="u"),
        tokens.root("m", lora="t"),
    ]
    prompt = b"abcd" * 16
    assert len({tokens.block_hashes(root, prompt, 16)[0] for root in roots}) == len(roots)
