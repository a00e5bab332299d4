"""Several workers' metrics as one router's."""

import pytest

from router.controlplane.merge_metrics import merge_metrics


def text(*families: tuple[str, str, dict[str, object]]) -> str:
    lines = []
    for name, kind, samples in families:
        lines += [f"# HELP {name} What it is.", f"# TYPE {name} {kind}"]
        lines += [f"{sample} {value}" for sample, value in samples.items()]
    return "\n".join(lines) + "\n"


def decisions(**kinds: int) -> str:
    samples = {f'homing_decisions_total{{kind="{kind}"}}': count for kind, count in kinds.items()}
    return text(("homing_decisions_total", "counter", samples))


def times(count: int, seconds: float) -> str:
    samples = {'homing_ttft_seconds_bucket{le="+Inf"}': count, "homing_ttft_seconds_sum": seconds}
    return text(("homing_ttft_seconds", "histogram", samples))


def test_counters_and_histograms_add_up():
    one = decisions(new=3) + times(3, 0.5)
    other = decisions(new=4, home=1) + times(2, 0.25)
    assert merge_metrics([one, other]) == decisions(new=7, home=1) + times(5, 0.75)


@pytest.mark.parametrize(
    ("name", "kind", "values", "merged"),
    [
        ("homing_replica_in_flight", "gauge", (2, 3), 5),
        ("homing_held_bytes", "gauge", (2, 3), 5),
        ("homing_replica_kv_usage", "gauge", (0.5, 0.25), 0.5),
        ("homing_replica_draining", "gauge", (0, 1), 1),
        ("homing_info", "gauge", (1, 1), 1),
        ("homing_start_time_seconds", "gauge", (100.5, 90.25), 90.25),
        ("homing_restarts_total", "counter", (2, 2), 2),
        ("homing_reloads_total", "counter", (1, 2), 2),
    ],
)
def test_what_all_see_is_told_once_and_what_each_has_adds_up(name, kind, values, merged):
    texts = [text((name, kind, {f'{name}{{replica="a b"}}': value})) for value in values]
    assert merge_metrics(texts) == text((name, kind, {f'{name}{{replica="a b"}}': merged}))


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf", "1e+300", "0.1", "-3", str(2**52)])
def test_numbers_are_written_as_they_were_read(number):
    one = text(("homing_x", "gauge", {"homing_x": number}))
    assert merge_metrics([one]) == one


def test_one_alone_stays_as_it_is_and_lines_that_are_none_are_passed_over():
    one = text(("homing_held_bytes", "gauge", {"homing_held_bytes": 12}))
    assert merge_metrics([one]) == one
    assert merge_metrics([one + "nonsense\nhoming_held_bytes x\n\n", ""]) == one
    assert merge_metrics([]) == ""
