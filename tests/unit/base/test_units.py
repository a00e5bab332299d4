"""Durations and sizes: every unit, every refusal with its words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("150ms", 0.15),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1.5s", 1.5),
        ("0.5h", 1800.0),
        ("0s", 0.0),
        ("0", 0.0),
        (0, 0.0),
        (0.0, 0.0),
    ],
)
def test_a_duration_is_read_in_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512B", 512),
        ("64KB", 64_000),
        ("3MB", 3_000_000),
        ("3GB", 3_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("64KiB", 65_536),
        ("64MiB", 67_108_864),
        ("2GiB", 2_147_483_648),
        ("1TiB", 1_099_511_627_776),
        ("1.5KiB", 1536),
        ("0", 0),
        (0, 0),
    ],
)
def test_a_size_is_read_in_bytes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "s", "fast", "-1s", "1e3s", "1 s", "10S", "1h30m", "5min", "٣s", "1.s", "9" * 13 + "s"]
)
def test_anything_else_is_no_duration_and_the_error_shows_valid_ones(text):
    with pytest.raises(ValueError, match=r"; write 150ms") as caught:
        parse_duration(text)
    assert str(caught.value) == f"'{text}' is not a duration; write 150ms, 30s, 5m, 2h or 1d"


@pytest.mark.parametrize("text", ["", "MiB", "64", "-1B", "64mib", "64M", "1 GiB", "²B"])
def test_anything_else_is_no_size_and_the_error_shows_valid_ones(text):
    with pytest.raises(ValueError, match=r"is not a size; .*write 512B, 64KiB, 64MiB or 2GiB$"):
        parse_size(text)


@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_is_not_taken_for_a_number(value):
    with pytest.raises(ValueError, match=r"is not a duration; write"):
        parse_duration(value)
    with pytest.raises(ValueError, match=r"is not a size; write"):
        parse_size(value)


@pytest.mark.parametrize("value", [30, "30"])
def test_a_bare_number_is_refused_with_the_unit_it_lacks(value):
    with pytest.raises(ValueError, match=r"; write 150ms") as caught:
        parse_duration(value)
    assert str(caught.value) == (
        "'30' is not a duration; it has no unit (did you mean 30s?); write 150ms, 30s, 5m, 2h or 1d"
    )
    with pytest.raises(ValueError, match=r"did you mean 30MiB\?"):
        parse_size(value)


def test_a_part_of_a_byte_is_refused():
    with pytest.raises(ValueError, match=r"'0\.3B' is not a whole number of bytes"):
        parse_size("0.3B")


@given(st.integers(min_value=0, max_value=999_999_999_999))
def test_a_formatted_size_reads_back_unchanged(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1000, "1000B"), (65_536, "64KiB"), (1 << 31, "2GiB"), (1 << 40, "1TiB")]
)
def test_a_size_is_formatted_in_the_largest_unit_that_divides_it(size, text):
    assert format_size(size) == text


@given(st.integers(min_value=0, max_value=999_999_999))
def test_a_formatted_duration_reads_back_unchanged(milliseconds):
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.15, "150ms"),
        (0.0005, "0.5ms"),
        (75.0, "75s"),
        (1800.0, "30m"),
        (7200, "2h"),
        (86400, "1d"),
    ],
)
def test_a_duration_is_formatted_in_the_largest_unit_that_divides_it(seconds, text):
    assert format_duration(seconds) == text
