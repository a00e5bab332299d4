"""Hints: followed only by the replica and for the request that they were made for, once, and in time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kv import SECRET

from router.kv.hint import MAX_AGE_S, HintFault, HintFaultKind, HintReader, sign

NOW = 1_790_000_000.0
PLAIN = {
    "v": 1,
    "session": "0123abcd",
    "tenant": "5f2e",
    "sources": ["replica-a", "pool"],
    "epoch": 7,
    "stall_ms": 150,
    "deadline_ms": 2000,
    "system_tokens": 1024,
    "exp": int(NOW) + 60,
}


def signed(plain=PLAIN, *, secret=SECRET, replica="b", request="req-1"):
    return sign(plain, secret=secret, replica=replica, request=request)


def reader(secret=SECRET, replica="b"):
    return HintReader(secret=secret, replica=replica)


def fault(raw, request="req-1", at=NOW, by=None):
    with pytest.raises(HintFault) as caught:
        (by or reader()).read(raw, request, at)
    return caught.value.kind


def test_a_hint_is_read():
    hint = reader().read(signed(), "req-1", NOW)
    assert hint.sources == ("replica-a", "pool")
    assert (hint.session, hint.tenant, hint.epoch) == ("0123abcd", "5f2e", 7)
    assert (hint.stall_s, hint.deadline_s, hint.system_tokens) == (0.15, 2.0, 1024)


@pytest.mark.parametrize(
    "id_", ["req-1", "chatcmpl-req-1", "chatcmpl-req-1-0a1b2c3d", "cmpl-req-1-0", "cmpl-req-1-0-0a1b2c3d"]
)
def test_an_engines_own_words_around_the_request_id_do_not_matter(id_):
    assert reader().read(signed(), id_, NOW).epoch == 7


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "v"])
def test_whatever_is_altered_the_signature_does_not_fit(name):
    value = PLAIN[name]
    other = {int: lambda: value + 1, str: lambda: value + "x", list: lambda: value[:1]}[type(value)]()
    assert fault({**signed(), name: other}) is HintFaultKind.SIGNATURE


def test_additions_are_alterations():
    assert fault({**signed(), "more": 1}) is HintFaultKind.SIGNATURE


def test_it_is_bound_to_replica_request_and_secret():
    assert fault(signed(replica="c")) is HintFaultKind.SIGNATURE
    assert fault(signed(request="req-2")) is HintFaultKind.SIGNATURE
    assert fault(signed(secret=b"another")) is HintFaultKind.SIGNATURE
    assert fault(signed(), by=reader(secret=None)) is HintFaultKind.UNSIGNED


def test_replica_and_request_cannot_be_told_apart_wrongly():
    assert fault(signed(replica="b\nx", request="y"), request="x\ny") is HintFaultKind.SIGNATURE
    assert fault(signed(replica='b","x', request="y"), request='x","y') is HintFaultKind.SIGNATURE


@pytest.mark.parametrize("exp", [int(NOW), int(NOW) - 5, int(NOW + MAX_AGE_S) + 1])
def test_it_holds_for_a_while(exp):
    assert fault(signed({**PLAIN, "exp": exp})) is HintFaultKind.EXPIRED


def test_a_copy_is_refused_and_the_request_itself_may_ask_again():
    by = reader()
    raw = signed()
    by.read(raw, "chatcmpl-req-1-aaaa", NOW)
    by.read(raw, "chatcmpl-req-1-aaaa", NOW + 1)
    assert fault(raw, "chatcmpl-req-1-bbbb", NOW + 1, by) is HintFaultKind.REPLAYED


def test_several_answers_to_one_prompt_are_one_use():
    by = reader()
    raw = signed()
    for number in range(3):
        by.read(raw, f"{number}_chatcmpl-req-1-aaaa", NOW)
    by.read(raw, "chatcmpl-req-1-aaaa", NOW)
    assert fault(raw, "0_chatcmpl-req-1-bbbb", NOW, by) is HintFaultKind.REPLAYED
    assert fault(raw, "x_chatcmpl-req-1-aaaa", NOW, by) is HintFaultKind.REPLAYED


def test_what_is_remembered_ends_with_the_hint(monkeypatch):
    by = reader()
    for number in range(50):
        plain = {**PLAIN, "exp": int(NOW) + 10 + number}
        by.read(sign(plain, secret=SECRET, replica="b", request=f"r{number}"), f"r{number}", NOW)
    assert len(by._used) == 50
    late = {**PLAIN, "exp": int(NOW) + 100}
    by.read(sign(late, secret=SECRET, replica="b", request="late"), "late", NOW + 40)
    assert len(by._used) == 20


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        ({"v": 2}, HintFaultKind.VERSION),
        ({"v": "1"}, HintFaultKind.MALFORMED),
        ({"sources": "a"}, HintFaultKind.MALFORMED),
        ({"sources": [1]}, HintFaultKind.MALFORMED),
        ({"sources": ["a"] * 65}, HintFaultKind.MALFORMED),
        ({"epoch": True}, HintFaultKind.MALFORMED),
        ({"stall_ms": 0}, HintFaultKind.MALFORMED),
        ({"deadline_ms": 10**9}, HintFaultKind.MALFORMED),
        ({"session": "s" * 257}, HintFaultKind.MALFORMED),
        ({"exp": 1e9}, HintFaultKind.MALFORMED),
        ({"exp": 10**400}, HintFaultKind.MALFORMED),
    ],
)
def test_what_is_no_hint_is_refused(edit, kind):
    assert fault(signed({**PLAIN, **edit})) is kind


@pytest.mark.parametrize("signature", [None, 5, "", "é" * 64])
def test_a_signature_is_a_signature(signature):
    assert fault({**PLAIN, "sig": signature}) in {HintFaultKind.MALFORMED, HintFaultKind.SIGNATURE}


def test_spacing_and_order_of_json_do_not_matter():
    raw = json.loads(json.dumps(dict(reversed(signed().items())), indent=3))
    assert reader().read(raw, "req-1", NOW).epoch == 7


@given(st.dictionaries(st.sampled_from([*PLAIN, "sig", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)))  # fmt: skip
def test_arbitrary_values_are_refused_and_nothing_else(edit):
    with pytest.raises(HintFault):
        reader().read({**PLAIN, **edit}, "req-1", NOW)
