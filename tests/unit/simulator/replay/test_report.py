"""A comparison as text and as JSON."""

from collections import Counter

from router.simulator.replay.compare import SeedResult
from router.simulator.replay.figures import Measured, figures
from router.simulator.replay.report import as_json, as_text, table


def seed(number: int, scale: float = 1.0) -> SeedResult:
    ring = Measured(
        ttft_s=[0.2 * scale, 150.0],
        session_s=[3000.0],
        prompt_tokens=10,
        cached_tokens=9,
        kinds=Counter(new=2),
        prefilled=[3, 1],
    )
    none = Measured(refused=2, prefilled=[0, 0])
    measured = {"ring": ring, "nobody": none}
    policies = {name: figures(each, 4) for name, each in measured.items()}
    bound = figures(Measured(ttft_s=[0.1], session_s=[2.0], prompt_tokens=10, cached_tokens=10), 4)
    return SeedResult(number, 7, measured, policies, bound)


def test_columns_are_as_wide_as_they_must_be():
    assert table([["a", "long"], ["name", "1"]]) == ["a     long", "name     1"]


def test_one_seed_is_one_table():
    heading, count, empty, columns, *rows = as_text("what was asked", [seed(0)]).splitlines()
    assert (heading, empty) == ("what was asked", "")
    assert count == "7 sessions, 2 turns answered under ring, 4 left out (longer than a replica's KV)"
    assert columns.split("  ")[0] == "policy"
    assert [" ".join(row.split()) for row in rows] == [
        "ring 0.900 75.1 s 200 ms 150 s 150 s 150 s 3000 s 3000 s 0 0 0 1.50 - -",
        "nobody - - - - - - - - 0 0 2 - - -",
        "bound 1.000 100 ms 100 ms 100 ms 100 ms 100 ms 2.0 s 2.0 s",
    ]
    assert {len(row) for row in rows[:2]} == {len(columns)}


def test_several_seeds_add_a_table_of_ratios():
    lines = as_text("asked", [seed(0), seed(1, 2.0)]).splitlines()
    assert lines[1].endswith("; medians over 2 seeds")
    start = lines.index("ratios over 2 seeds: median (least … most)")
    assert lines[start + 1].split()[:3] == ["to", "ring", "ttft_ms.mean"]
    assert lines[start + 2].split() == ["nobody", "-", "-", "-", "-"]
    assert lines[start + 3].startswith("bound")
    assert "1.11 (1.11 … 1.11)" in lines[start + 3]


def test_json_has_the_shape_that_is_promised():
    answer = as_json([seed(0)])
    assert set(answer) == {"policies", "bound"}
    ring = answer["policies"]["ring"]
    assert set(ring) == {
        "hit_rate", "ttft_ms", "session_s", "moves", "pulls", "refused", "turns", "left_out", "imbalance",
        "ttft_error",
        "cached_error",
    }  # fmt: skip
    assert set(ring["ttft_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert set(ring["session_s"]) == {"p50", "p90"}
    assert set(answer["bound"]["ttft_ms"]) == {"mean", "p50", "p90", "p99", "max"}
    assert (ring["turns"], ring["left_out"], ring["ttft_ms"]["p50"]) == (2, 4, 200.0)
    assert answer["policies"]["nobody"]["hit_rate"] is None


def test_json_over_seeds_has_medians_each_seeds_own_and_the_ratios():
    answer = as_json([seed(0), seed(5, 3.0)])
    assert answer["policies"]["ring"]["ttft_ms"]["p50"] == 400.0
    assert [each["seed"] for each in answer["seeds"]] == [0, 5]
    assert answer["seeds"][1]["policies"]["ring"]["ttft_ms"]["p50"] == 600.0
    assert answer["paired"]["bound"]["hit_rate"]["median"] == 1.111111
