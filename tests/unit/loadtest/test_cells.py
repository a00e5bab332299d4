"""The comparison of policies at four loads: what it keeps, and what it prints."""

from pathlib import Path

import pytest

from loadtest.cells.__main__ import CELLS, Bench, compared, main
from loadtest.kept import Kept, digest
from router.base.errors import HomingError
from router.simulator.replay.reading import read_trace

TRACE = Path(__file__).parents[2] / "data" / "small-trace.jsonl"


def figures(mean: float, hit: float = 0.9) -> dict[str, float]:
    return {
        "mean_s": mean,
        "p90_s": 2 * mean,
        "max_s": 9.0,
        "hit_rate": hit,
        "refused": 0.0,
        "cached_error": 0.0004,
        "ttft_error": 0.08,
    }


def test_ratios_are_of_the_same_seed_and_a_seed_that_is_not_known_does_not_count() -> None:
    known = {
        ("ring", 0): figures(1.0),
        ("ring", 1): figures(4.0),
        ("ring", 2): figures(2.0),
        ("home", 0): figures(0.5, 0.95),
        ("home", 1): figures(1.0, 0.99),
    }
    text = compared(["light"], ["ring", "home"], 3, lambda _cell, policy, seed: known.get((policy, seed)))
    _, ring, home = [line for line in text.splitlines() if line.strip(" -")]
    assert ring.split()[:5] == ["light", "(8", "@", "0.05)", "ring"]
    assert "2.00 s" in ring
    assert ring.endswith("3")
    assert "0.38 (0.25 … 0.50)" in home
    assert "0.970" in home
    assert home.split()[-3:] == ["0.04%", "8.0%", "2"]
    assert home.endswith("2")


def test_what_is_kept_is_not_computed_again_and_counts_for_the_same_code_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    trace = read_trace(TRACE)
    bench = Bench(trace, 4, Kept(path), "this code")
    assert bench.figures("light", "ring", 0, compute=False) is None
    made = bench.figures("light", "ring", 0)
    assert made is not None
    assert made["mean_s"] > 0.0
    assert len(path.read_text().splitlines()) == 1
    again = Bench(trace, 4, Kept(path), "this code")
    assert again.figures("light", "ring", 0, compute=False) == made
    assert Bench(trace, 4, Kept(path), "other code").figures("light", "ring", 0, compute=False) is None


def test_a_file_that_keeps_something_else_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    path.write_text('{"of": "x", "figures": {}}\nnot json\n')
    with pytest.raises(HomingError, match=r"kept\.jsonl:2: "):
        Kept(path)


def test_the_digest_changes_with_any_file_and_not_with_where_they_lie(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    before = digest([one, two])
    elsewhere = tmp_path / "zzz"
    elsewhere.write_text("1")
    assert digest([elsewhere, two]) == before
    two.write_text("3")
    assert digest([one, two]) != before
    with pytest.raises(HomingError, match="three"):
        digest([tmp_path / "three"])


def test_it_goes_on_where_it_was_and_prints_what_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "new" / "kept.jsonl"
    asked = [str(TRACE), "--keep", str(keep), "--sessions", "3", "--cell", "light", "--policy", "ring"]
    main([*asked, "--seeds", "1"])
    main([*asked, "--policy", "bound", "--seeds", "1"])
    capsys.readouterr()
    main([*asked, "--policy", "home", "--policy", "bound", "--seeds", "2", "--table"])
    text = capsys.readouterr().out
    assert "bound" in text
    assert "home" not in text
    with pytest.raises(SystemExit, match="no such"):
        main([str(tmp_path / "no such"), "--keep", str(keep), "--table"])


def test_the_loads_are_those_that_are_asked_for() -> None:
    assert {(cell.replicas, cell.rate) for cell in CELLS.values()} == {
        (8, 0.05),
        (8, 0.5),
        (8, 2.0),
        (4, 0.5),
    }
