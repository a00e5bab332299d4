import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.controlplane.metrics_text import parse_report
from router.core.fleet import Report

VLLM = b"""\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79012345678e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:cache_config_info{block_size="64",cache_dtype="auto",engine="0",num_gpu_blocks="600"} 1.0
"""


def test_reads_what_vllm_writes() -> None:
    assert parse_report(VLLM) == Report(1790123456.78, 3.0, 2.0, 0.25, 38400, block_tokens=64)


def test_a_text_without_our_figures_has_none_of_them() -> None:
    assert parse_report(b"") == Report(None, None, None, None, None)
    assert parse_report(b"go_goroutines 12\n") == Report()


def test_engines_of_one_data_parallel_replica_are_added_up() -> None:
    text = (
        b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        b'vllm:num_requests_waiting{engine="0"} 0\nvllm:num_requests_waiting{engine="1"} 5\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 1.0\n'
        b'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"} 1\n'
        b'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="50"} 1\n'
    )
    assert parse_report(text) == Report(None, 7.0, 5.0, 0.75, 2400, block_tokens=16)
    other = text.replace(b'block_size="16",num_gpu_blocks="50"', b'block_size="32",num_gpu_blocks="50"')
    assert parse_report(other).block_tokens is None


def test_a_series_that_appears_twice_counts_once() -> None:
    assert parse_report(b'vllm:num_requests_running{e="0"} 3\n' * 2).running == 3.0


def test_one_engine_that_cannot_be_read_leaves_the_sum_unknown() -> None:
    text = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} NaN\n'
    assert parse_report(text).running is None


def test_the_older_name_of_kv_usage_is_read_where_the_newer_is_missing() -> None:
    assert parse_report(b"vllm:gpu_cache_usage_perc 0.5\n").kv_usage == 0.5
    both = b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n"
    assert parse_report(both).kv_usage == 0.25


def test_an_unreadable_newer_name_is_not_replaced_by_the_older() -> None:
    both = b"vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc NaN\n"
    assert parse_report(both).kv_usage is None


def test_of_several_processes_the_youngest_start_counts() -> None:
    text = b'process_start_time_seconds{p="1"} 100\nprocess_start_time_seconds{p="2"} 200\n'
    assert parse_report(text).start_time == 200.0


@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"+Inf",
        b"-1",
        b"1e300",
        b"1e8",
        b"1_0",
        b"0x10",
        b"",
        b"three",
        b"1 2 3",
        b"9" * 5000,
        b"\xff",
    ],
)
def test_a_number_that_cannot_be_right_is_unknown(value: bytes) -> None:
    assert parse_report(b"vllm:num_requests_running " + value + b"\n").running is None


@pytest.mark.parametrize("value", [b"1.01", b"-0.1", b"NaN", b"97"])
def test_a_share_outside_of_0_to_1_is_unknown(value: bytes) -> None:
    assert parse_report(b"vllm:kv_cache_usage_perc " + value + b"\n").kv_usage is None


@pytest.mark.parametrize("value", [b"0", b"-5", b"NaN", b"1e12"])
def test_a_start_time_that_cannot_be_right_is_unknown(value: bytes) -> None:
    assert parse_report(b"process_start_time_seconds " + value + b"\n").start_time is None


@pytest.mark.parametrize(
    "labels",
    [
        b'block_size="16"',
        b'num_gpu_blocks="10"',
        b'block_size="16",num_gpu_blocks="None"',
        b'block_size="0",num_gpu_blocks="10"',
        b'block_size="-16",num_gpu_blocks="-10"',
        b'block_size="1.5",num_gpu_blocks="10"',
        b'block_size="16",num_gpu_blocks="' + b"9" * 30 + b'"',
        b'block_size="9999999",num_gpu_blocks="10"',
    ],
)
def test_a_capacity_that_is_not_told_in_full_is_unknown(labels: bytes) -> None:
    assert parse_report(b"vllm:cache_config_info{" + labels + b"} 1\n").kv_capacity_tokens is None


def test_a_zero_that_was_reported_is_zero() -> None:
    text = b"vllm:num_requests_running 0.0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    assert parse_report(text) == Report(None, 0.0, 0.0, 0.0, None)


def test_a_text_cut_inside_a_number_does_not_yield_the_shorter_number() -> None:
    assert parse_report(b"vllm:num_requests_running 120").running is None
    assert parse_report(b"vllm:num_requests_running 120\n").running == 120.0


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:num_requests_running{engine="0" 3',
        b'vllm:num_requests_running{engine="0} 3',
        b"vllm:num_requests_running{engine=0} 3",
        b'vllm:num_requests_running{="0"} 3',
        b"vllm:num_requests_running{",
        b"vllm:num_requests_running ",
    ],
)
def test_a_broken_line_leaves_the_figure_unknown(line: bytes) -> None:
    assert parse_report(line + b"\nvllm:num_requests_running 3\n").running is None


def test_quotes_braces_and_commas_inside_a_label_are_text() -> None:
    line = rb'vllm:num_requests_running{model_name="a\"} 9,{\\",engine="0"} 4' + b"\n"
    assert parse_report(line).running == 4.0


def test_carriage_returns_spaces_and_time_stamps_are_tolerated() -> None:
    text = b'vllm:num_requests_running{ engine = "0" , } 4 1790000000000\r\n'
    assert parse_report(text).running == 4.0


def test_a_name_inside_a_comment_or_a_label_is_not_a_figure() -> None:
    text = b'# vllm:num_requests_running 5\nother{x="vllm:num_requests_running 6"} 1\n'
    assert parse_report(text).running is None


def test_more_series_than_any_replica_has_engines_are_refused() -> None:
    lines = b"".join(b'vllm:num_requests_running{engine="%d"} 1\n' % i for i in range(2000))
    assert parse_report(lines).running is None


def test_a_line_longer_than_any_real_one_is_refused() -> None:
    assert parse_report(b'vllm:num_requests_running{a="' + b"x" * 70_000 + b'"} 1\n').running is None


NAMES = st.sampled_from(
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:cache_config_info",
        "process_start_time_seconds",
    ]
)
PIECES = st.one_of(
    NAMES,
    st.sampled_from(
        ['{engine="0"}', '{block_size="16",num_gpu_blocks="8"}', "{", "}", '"', "\\", ",", "=", "\n"]
    ),
    st.sampled_from([" ", " 1", " NaN\n", " -1\n", " 1e999\n", " 0.5\n", "\r\n", "\t"]),
    st.text(max_size=6),
)


@given(st.one_of(st.lists(PIECES, max_size=40).map(lambda parts: "".join(parts).encode()), st.binary()))
def test_no_text_makes_it_raise_or_report_nonsense(text: bytes) -> None:
    report = parse_report(text)
    for figure in (report.running, report.waiting):
        assert figure is None or 0 <= figure < 1e11
    assert report.kv_usage is None or 0 <= report.kv_usage <= 1
    assert report.start_time is None or report.start_time > 0
    assert report.kv_capacity_tokens is None or report.kv_capacity_tokens > 0


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20),
)
def test_any_label_text_that_is_escaped_rightly_is_read_through(values: list[int], label: str) -> None:
    escaped = label.replace("\\", "\\\\").replace('"', '\\"').encode()
    text = b"".join(
        b'vllm:num_requests_running{engine="%d",m="%s"} %d\n' % (i, escaped, value)
        for i, value in enumerate(values)
    )
    assert parse_report(text).running == sum(values)


@pytest.mark.parametrize(
    "hostile",
    [
        b"vllm:num_requests_running" * 40_000,
        b"\nvllm:num_requests_running" * 40_000,
        b'vllm:num_requests_running{a="' + b'\\"' * 500_000,
        b"vllm:num_requests_running{" + b'a="",' * 12_000 + b"\n",
        b'vllm:num_requests_running{a="1"} 1\n' * 30_000,
    ],
    ids=["one line", "names only", "open label", "many labels", "repeats"],
)
def test_a_hostile_megabyte_takes_no_longer_than_its_length_allows(hostile: bytes) -> None:
    began = time.process_time()
    parse_report(hostile)
    # Quadratic work over a megabyte would take minutes; linear takes milliseconds.
    assert time.process_time() - began < 2.0
