"""Keys: any field that differs makes another namespace, and is named."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv import NAMESPACE

from router.kv.keys import (
    HASH_BYTES,
    ROOT,
    SPACE_BYTES,
    BlockKey,
    KeyFault,
    Namespace,
    nearest_difference,
    pack_hashes,
    unpack_hashes,
)

NAMES = [field.name for field in fields(Namespace)]


def changed(name: str) -> Namespace:
    value = getattr(NAMESPACE, name)
    return replace(NAMESPACE, **{name: value + 1 if isinstance(value, int) else value + "x"})


@pytest.mark.parametrize("name", NAMES)
def test_each_field_makes_another_namespace_and_is_named(name):
    other = changed(name)
    assert other.space != NAMESPACE.space
    (difference,) = NAMESPACE.differences(other)
    assert difference == f"{name}: {getattr(NAMESPACE, name)} here, {getattr(other, name)} there"


def test_what_must_be_equal_is_all_there():
    assert {
        "model", "revision", "tokenizer", "kv_dtype", "block_size", "layout", "backend", "instruction_set",
        "layers", "kv_heads", "head_dim", "tp_size", "pp_size", "ranks", "hash_algorithm", "hash_seed",
        "format_version",
    } <= set(NAMES)  # fmt: skip


def test_values_cannot_slide_from_one_field_to_the_next():
    one = replace(NAMESPACE, model="a", revision="bc")
    other = replace(NAMESPACE, model="ab", revision="c")
    assert one.space != other.space


def test_the_digest_is_the_same_in_every_process_and_version():
    assert NAMESPACE.space.hex() == "44e2eabbea65f372840858f2aa39e934"
    assert len(NAMESPACE.space) == SPACE_BYTES


def test_a_namespace_travels_as_a_mapping():
    assert Namespace.from_dict(NAMESPACE.as_dict()) == NAMESPACE


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ({"model": ""}, "model: '' is not a text of 1 to 256 characters"),
        ({"model": "m" * 257}, "model: "),
        ({"model": 3}, "model: '3' is not a text"),
        ({"block_size": 0}, "block_size: 0 is not a positive whole number"),
        ({"block_size": True}, "block_size: True is not"),
        ({"block_size": "16"}, "block_size: '16' is not"),
        ({"layers": 1 << 50}, "layers: "),
        ({"colour": "red"}, "colour: unknown"),
        ({"hash_seed": None}, "hash_seed: missing"),
    ],
)
def test_what_cannot_be_a_namespace_is_refused_by_field(edit, fault):
    values = {**NAMESPACE.as_dict(), **edit}
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(KeyFault, match="^" + fault.replace("(", r"\(")):
        Namespace.from_dict(values)


def test_the_nearest_namespace_says_what_is_wrong():
    far = replace(NAMESPACE, model="other", kv_dtype="fp8", layers=2)
    near = changed("tokenizer")
    assert nearest_difference(NAMESPACE, [far, near]) == NAMESPACE.differences(near)
    assert nearest_difference(NAMESPACE, [far, NAMESPACE]) == ()
    assert nearest_difference(NAMESPACE, []) == ()


def test_tenants_share_no_block():
    assert BlockKey(NAMESPACE.space, "a", ROOT) != BlockKey(NAMESPACE.space, "b", ROOT)


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), max_size=20))
def test_hashes_come_back_as_they_were_packed(hashes):
    assert list(unpack_hashes(pack_hashes(hashes))) == hashes


def test_a_piece_of_a_hash_is_refused():
    with pytest.raises(KeyFault, match="33 bytes are no multiple of 32"):
        unpack_hashes(bytes(33))
