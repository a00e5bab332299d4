"""The calibration: scripts and records as text, the plan of rounds, and a fit that finds what is there."""

from collections.abc import Mapping

import pytest

from loadtest.calibrate import counts, times
from loadtest.calibrate.episodes import LIMITS, Round, Timed, rounds
from loadtest.calibrate.fit import pattern_search
from loadtest.calibrate.measure import Measured, MeasuredRound
from loadtest.calibrate.predict import Jobs, play
from loadtest.calibrate.scenarios import by_chance, rules
from loadtest.calibrate.script import (
    Piece,
    Record,
    Submit,
    Texts,
    block_hashes,
    differences,
    from_line,
    to_line,
)
from loadtest.calibrate.simulated import SimulatedScheduler
from router.simulator.model import EngineModel

TRUTH = {
    "prefill_tps": 9000.0,
    "decode_tps": 140.0,
    "request_ms": 4.0,
    "prefill_double_tokens": 9000.0,
    "decode_double_seqs": 20.0,
    "decode_double_tokens": 15_000.0,
    "step_ms": 5.0,
    "server_ms": 2.0,
}


def made_up(plan: list[Round], parameters: Mapping[str, float]) -> times.Measurement:
    """What an engine with such parameters would have been measured to do."""
    sent = [
        MeasuredRound(
            one.kind,
            one.timed,
            one.shape,
            tuple(Measured(at, submit, 0, 0, 0) for at, submit in one.requests),
        )
        for one in plan
    ]
    settings, outside = times.settings(LIMITS, parameters)
    model = EngineModel(settings, token_events=False)
    predicted = iter(play(sent, Jobs(sent, LIMITS), model, outside))
    measured = [
        one._replace(
            requests=tuple(
                request._replace(ttft_s=said.ttft_s, total_s=said.total_s, cached_tokens=said.cached_tokens)
                for request, said in zip(one.requests, predicted, strict=False)
            )
        )
        for one in sent
    ]
    totals = times.Totals(model.counters.queries, model.counters.hits, 0)
    return times.Measurement({"machine": "none"}, LIMITS, totals, tuple(measured))


@pytest.mark.parametrize("script", [*list(rules())[-3:], by_chance(3)], ids=lambda script: script.name)
def test_a_script_and_its_record_survive_as_a_line(script) -> None:
    record = SimulatedScheduler(script.limits).run(script)
    assert from_line(to_line(script, record)) == (script, record)


def test_the_first_step_that_differs_is_told() -> None:
    script = next(rules())
    record = SimulatedScheduler(script.limits).run(script)
    changed = list(record.steps)
    changed[3] = changed[3]._replace(used=99)
    changed[5] = changed[5]._replace(left=98)
    assert differences(record, record) == {}
    assert differences(record, record._replace(steps=tuple(changed))) == {
        "step 3: used": f"{record.steps[3].used} → 99"
    }
    assert differences(record, record._replace(hits=1)) == {"hits": f"{record.hits} → 1"}
    assert "steps" in differences(record, record._replace(steps=record.steps[:-1]))


def test_a_model_that_parts_is_found() -> None:
    script = next(rules())
    record = SimulatedScheduler(script.limits).run(script)
    assert counts.compare([(script, record)]).differing == ()
    wrong = Record(record.steps, record.queries + 1, record.hits)
    (line,) = counts.compare([(script, record), (script, wrong)]).differing
    assert line.startswith(script.name)
    assert "queries" in line


def test_a_record_is_read_as_it_was_written(tmp_path) -> None:
    recorded = [(script, SimulatedScheduler(script.limits).run(script)) for script in [*rules()][:2]]
    counts.write(tmp_path / "record.gz", recorded)
    assert list(counts.read(tmp_path / "record.gz")) == recorded


def test_prompts_share_blocks_as_far_as_their_pieces_are_equal() -> None:
    texts = Texts()
    one = block_hashes(list(texts.tokens([Piece("a", 40), Piece("b", 40)])), 16)
    other = block_hashes(list(texts.tokens([Piece("a", 40), Piece("c", 40)])), 16)
    longer = block_hashes(list(texts.tokens([Piece("a", 60)])), 16)
    assert len(one) == 5
    assert (one[:2], one[2] == other[2]) == (other[:2], False)
    assert longer[:2] == one[:2]


def test_every_kind_of_load_is_in_both_halves() -> None:
    plan = list(rounds(0))
    parts = times.halves([MeasuredRound(one.kind, one.timed, one.shape, ()) for one in plan])
    assert not parts[0] & parts[1]
    kinds = {one.kind for one in plan if one.timed}
    for part in parts:
        assert {one.kind for one in plan if one.timed and one.shape in part} == kinds


def test_shapes_come_again_with_other_texts() -> None:
    plan = [one for one in rounds(0) if one.timed]
    alike = [one for one in plan if one.shape == plan[0].shape]
    assert len(alike) == 3
    assert len({request.submit.prompt for one in alike for request in one.requests}) == 3 * len(
        alike[0].requests
    )
    assert len({tuple(request.submit.prompt_tokens for request in one.requests) for one in alike}) == 1


def test_one_slow_moment_of_three_does_not_count() -> None:
    measurement = made_up([one for one in rounds(0) if one.kind == "cold, alone"], TRUTH)
    request = measurement.rounds[0].requests[0]
    slow = measurement.rounds[0]._replace(requests=(request._replace(ttft_s=9.0, total_s=9.0),))
    disturbed = measurement._replace(rounds=(slow, *measurement.rounds[1:]))
    shapes = frozenset(one.shape for one in disturbed.rounds)
    assert times.tested(disturbed, TRUTH, shapes)["all"].ttft[1] == pytest.approx(0, abs=1e-9)


def test_a_fit_finds_the_parameters_that_made_the_times() -> None:
    once = list(rounds(0))[: len(list(rounds(0))) // 3]
    chosen = ("cold, alone", "opening", "warm, alone", "decoding")
    measurement = made_up([one for one in once if one.kind in chosen and len(one.requests) < 5], TRUTH)
    found = times.fit(measurement, times.GROWING)
    assert found.by_kind["all"].ttft[0] < 0.02
    assert found.parameters["prefill_tps"] == pytest.approx(TRUTH["prefill_tps"], rel=0.1)
    assert times.cached_differences(measurement) == []
    text = times.table(measurement, found, found)
    assert "| decoding |" in text
    assert "`prefill_tps`" in text


def test_other_cached_tokens_are_told() -> None:
    measurement = made_up([one for one in rounds(0) if one.timed][:4], TRUTH)
    first = measurement.rounds[0].requests[0]._replace(cached_tokens=64)
    wrong = measurement.rounds[0]._replace(requests=(first, *measurement.rounds[0].requests[1:]))
    (line,) = times.cached_differences(measurement._replace(rounds=(wrong, *measurement.rounds[1:])))
    assert "64 cached, 0 in the model" in line
    more = measurement.totals._replace(hits=measurement.totals.hits + 64)
    (line,) = times.cached_differences(measurement._replace(totals=more))
    assert line.startswith("hits: ")


def test_measured_times_are_read_as_they_were_written(tmp_path) -> None:
    request = Timed(0.0, Submit("a", (Piece("p", 100),), Piece("r", 3)))
    measurement = made_up([Round("kind", (request,))], TRUTH)
    times.write(tmp_path / "times.gz", measurement, TRUTH)
    assert times.read(tmp_path / "times.gz") == (measurement, TRUTH)


def test_the_search_follows_a_valley() -> None:
    def loss(at: Mapping[str, float]) -> float:
        return abs(at["x"] - 30) + abs(at["y"] - 0.2) * 100

    found, least = pattern_search({"x": 1.0, "y": 1.0}, loss)
    assert found == {"x": pytest.approx(30, rel=0.02), "y": pytest.approx(0.2, rel=0.02)}
    assert least == loss(found)
