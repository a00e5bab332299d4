"""Files as values with lines: what is read as what, and every refusal with its line and words."""

import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.settings.document import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    Document,
    Fault,
    parse_document,
    read_document,
)


def faults(raw: bytes, *, secret: bool = False) -> list[str]:
    return [str(fault) for fault in parse_document(raw, "f.yaml", secret=secret).faults]


def test_values_keep_the_line_of_their_key_or_item():
    document = parse_document(b"a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n", "f.yaml")
    assert document.value == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert [document.line_of(loc) for loc in (("a",), ("b",), ("b", 0), ("b", 1), ("b", 1, "d"))] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert document.line_of(("b", 1, "nowhere", 7)) == 4
    assert document.known(("b", 1, "nowhere", 7)) == ("b", 1)
    assert document.at("b", 1, "d") == 3
    assert document.at("b", 9) is None
    assert document.at("a", "x") is None


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("0o17", "0o17"),
        ("0x10", "0x10"),
        ("017", 17),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("1" * 64, "1" * 64),
        ("1e3", 1000.0),
        ("-1.5", -1.5),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'1'", "1"),
    ],
)
def test_plain_scalars_follow_the_core_rules(written, value):
    read = parse_document(f"a: {written}\n".encode(), "f.yaml").value
    assert read == {"a": value}
    assert type(read["a"]) is type(value)


def test_a_key_stays_text_whatever_it_looks_like():
    assert parse_document(b"1: a\ntrue: b\n", "f.yaml").value == {"1": "a", "true": "b"}


def test_a_key_given_twice_is_refused_and_the_first_one_counts():
    document = parse_document(b"a: 1\nb: 2\na: 3\n", "f.yaml")
    assert [str(fault) for fault in document.faults] == ["f.yaml:3: 'a' is already given on line 1"]
    assert document.value == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "f.yaml:1: the file is empty"),
        (b"# nothing\n", "f.yaml:1: the file is empty"),
        (b"\n- a\n", "f.yaml:2: the file is not a mapping of keys to values"),
        (b"just text\n", "f.yaml:1: the file is not a mapping of keys to values"),
        (b"a:\n\tb: 1\n", "f.yaml:2: a tab where YAML wants spaces: indent with spaces"),
        (b"a: 1\nb: [1\nc: 2\n", "f.yaml:3: is not valid YAML: expected ',' or ']', but got ':'"),
        (b"a: *b\n", "f.yaml:1: is not valid YAML: found undefined alias 'b'"),
        (b"a: 1\n---\nb: 1\n", "f.yaml:3: another document begins; a file holds one"),
        (b"a: 1\nb: \x01\n", "f.yaml:2: holds a control character, which YAML does not allow"),
        (b"a: 1\n\nb: \xff\n", "f.yaml:3: is not UTF-8 text"),
        (b"a: 1\n? [x]\n: 2\n", "f.yaml:2: a key must be plain text"),
        (b"a: &x [*x]\n", "f.yaml:1: an alias stands for something that contains it"),
        (b"a: !!python/name:os.system\n", "f.yaml:1: YAML tags are not read here (!!python/name:os.system)"),
        (b"a: !!set {x}\n", "f.yaml:1: YAML tags are not read here (!!set)"),
        (b"a: !!int 12ab\n", "f.yaml:1: YAML tags are not read here (!!int)"),
        (b"a: !!float 1.2.3\n", "f.yaml:1: YAML tags are not read here (!!float)"),
        (b"a: !!bool x\n", "f.yaml:1: YAML tags are not read here (!!bool)"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_why(raw, expected):
    (fault,) = faults(raw)
    assert fault.removesuffix(": write the plain value") == expected


def test_nesting_is_bounded():
    raw = b"a: " + b"[" * 2000 + b"]" * 2000
    assert faults(raw) == [f"f.yaml:1: is not valid YAML: nested deeper than {MAX_DEPTH} levels"]


def test_aliases_that_unfold_without_end_are_cut_off():
    names = "abcdefghi"
    raw = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n".encode() for before, name in pairwise(names)
    )
    (fault,) = faults(raw)
    assert fault.endswith(f"the file unfolds to more than {MAX_VALUES} values")


def test_an_alias_that_stands_for_a_plain_value_is_read():
    assert parse_document(b"a: &x [1]\nb: *x\n", "f.yaml").value == {"a": [1], "b": [1]}


def test_a_file_beyond_any_settings_is_refused():
    assert faults(b"a: " + b"x" * MAX_BYTES) == [
        "f.yaml: is larger than 4 MiB, which no settings file needs to be"
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_key():
    assert parse_document(b"\xef\xbb\xbfa: 1\n", "f.yaml").value == {"a": 1}


def test_a_missing_file_and_a_folder_are_faults(tmp_path):
    missing = read_document(tmp_path / "x.yaml", "x.yaml")
    assert [str(fault) for fault in missing.faults] == ["x.yaml: cannot be read: No such file or directory"]
    folder = read_document(tmp_path, "x")
    assert [str(fault) for fault in folder.faults] == ["x: cannot be read: Is a directory"]


@pytest.mark.parametrize(
    "raw",
    [
        b"keys: *sk-hunter2\n",
        b"sk-hunter2: 1\nsk-hunter2: 2\n",
        b"a: !sk-hunter2 x\n",
        b"a: [sk-hunter2\nb: 1\n",
        b"\tsk-hunter2\n",
    ],
)
def test_a_secret_file_is_never_quoted(raw):
    (fault,) = faults(raw, secret=True)
    assert "hunter2" not in fault
    assert fault.startswith("f.yaml:")


def test_a_fault_without_a_line_is_shown_without_one():
    assert str(Fault("--replica", None, "is bad")) == "--replica: is bad"


def test_an_unread_document_has_nothing_anywhere():
    document = Document("f.yaml")
    assert document.at("a") is None
    assert document.line_of(("a",)) == 1


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_bytes_raise(raw):
    document = parse_document(raw, "f.yaml")
    assert document.faults or isinstance(document.value, dict)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    [fault] = read_document(tmp_path / "pipe", "pipe").faults
    assert str(fault) == "pipe: is not a regular file"
