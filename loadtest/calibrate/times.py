"""Times: the model's parameters fitted to one half of what was measured, and its errors on the other half."""

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from loadtest.calibrate.episodes import REPEATS
from loadtest.calibrate.fit import pattern_search
from loadtest.calibrate.measure import Measured, MeasuredRound
from loadtest.calibrate.predict import (
    Errors,
    Jobs,
    Outside,
    Predicted,
    errors,
    log_error,
    play,
    spread,
    typical,
)
from loadtest.calibrate.script import Limits, Piece, Submit
from router.simulator.model import EngineModel
from router.simulator.settings import ReplicaSettings

CONSTANT: Final[Mapping[str, float]] = {
    "prefill_tps": 10_000.0,
    "decode_tps": 150.0,
    "request_ms": 5.0,
    "server_ms": 3.0,
}
"""Where the search begins for a model whose costs do not grow."""
GROWING: Final[Mapping[str, float]] = {
    **CONSTANT,
    "prefill_double_tokens": 3000.0,
    "decode_double_seqs": 8.0,
    "decode_double_tokens": 40_000.0,
    "step_ms": 5.0,
}


class Totals(NamedTuple):
    """What the engine's counters went up by."""

    queries: int
    hits: int
    preemptions: int


class Measurement(NamedTuple):
    """What was measured, and on what."""

    about: Mapping[str, str]
    limits: Limits
    totals: Totals
    rounds: tuple[MeasuredRound, ...]


class Fitted(NamedTuple):
    """Parameters found, and what the model says with them of the requests that were not used to find them."""

    parameters: Mapping[str, float]
    by_kind: Mapping[str, Errors]
    """And of `all`."""


def halves(rounds: Sequence[MeasuredRound]) -> tuple[frozenset[int], frozenset[int]]:
    """The shapes to fit with, and those to test with: of each kind every other one."""
    parts: tuple[set[int], set[int]] = (set(), set())
    seen: dict[str, int] = {}
    for shape, kind in sorted({(one.shape, one.kind) for one in rounds if one.timed}):
        parts[seen.get(kind, 0) % 2].add(shape)
        seen[kind] = seen.get(kind, 0) + 1
    return frozenset(parts[0]), frozenset(parts[1])


def fit(measurement: Measurement, start: Mapping[str, float]) -> Fitted:
    rounds, limits = measurement.rounds, measurement.limits
    fitting, testing = halves(rounds)
    jobs = Jobs(rounds, limits)

    def predict(parameters: Mapping[str, float]) -> list[Predicted]:
        return _played(rounds, jobs, limits, parameters)

    def loss(parameters: Mapping[str, float]) -> float:
        return log_error([one for one in typical(predict(parameters)) if one.shape in fitting])

    found, _ = pattern_search(start, loss)
    rounded = {name: float(f"{value:.4g}") for name, value in found.items()}
    return Fitted(rounded, tested(measurement, rounded, testing))


def tested(
    measurement: Measurement, parameters: Mapping[str, float], shapes: frozenset[int]
) -> Mapping[str, Errors]:
    """The errors of shapes by their kind, and of all."""
    rounds, limits = measurement.rounds, measurement.limits
    predicted = _played(rounds, Jobs(rounds, limits), limits, parameters)
    chosen = [one for one in typical(predicted) if one.shape in shapes]
    kinds = sorted({one.kind for one in chosen})
    by_kind = {kind: errors([one for one in chosen if one.kind == kind]) for kind in kinds}
    return {**by_kind, "all": errors(chosen)}


def _played(
    rounds: Sequence[MeasuredRound], jobs: Jobs, limits: Limits, parameters: Mapping[str, float]
) -> list[Predicted]:
    inside, outside = settings(limits, parameters)
    return play(rounds, jobs, EngineModel(inside, token_events=False), outside)


def cached_differences(measurement: Measurement) -> list[str]:
    """Requests and counters of which the engine said other than the model, a line each."""
    rounds, limits = measurement.rounds, measurement.limits
    inside, outside = settings(limits, GROWING)
    model = EngineModel(inside, token_events=False)
    predicted = play(rounds, Jobs(rounds, limits), model, outside)
    counters = model.counters
    totals = Totals(counters.queries, counters.hits, counters.preemptions)
    differing = [
        f"{name}: {real}, {said} in the model"
        for name, real, said in zip(Totals._fields, measurement.totals, totals, strict=True)
        if real != said
    ]
    return differing + [
        f"{one.kind}, shape {one.shape}: {one.real.submit.prompt_tokens} tokens,"
        f" {one.real.cached_tokens} cached, {one.cached_tokens} in the model"
        for one in predicted
        if one.cached_tokens != one.real.cached_tokens
    ]


def settings(limits: Limits, parameters: Mapping[str, float]) -> tuple[ReplicaSettings, Outside]:
    inside = {name: value for name, value in parameters.items() if name not in Outside._fields}
    outside = {name: parameters.get(name, 0.0) for name in Outside._fields}
    return (
        ReplicaSettings(
            block_size=limits.block_size,
            kv_blocks=limits.blocks,
            batch_tokens=limits.batch_tokens,
            max_num_seqs=limits.max_num_seqs,
            **inside,  # type: ignore[arg-type]  # all of them are numbers
        ),
        Outside(**outside),
    )


def table(measurement: Measurement, constant: Fitted, growing: Fitted) -> str:
    """For people, in Markdown."""
    lines = [
        "| Load | Requests | TTFT, error p50 / p90 | Decoding, error p50 / p90 | TTFT at a constant rate |",
        "|---|---|---|---|---|",
    ]
    for kind, found in growing.by_kind.items():
        lines.append(
            f"| {kind} | {found.requests} | {_percent(found.ttft)} | {_percent(found.decode)}"
            f" | {_percent(constant.by_kind[kind].ttft)} |"
        )
    named = ", ".join(f"`{name}` {value:g}" for name, value in growing.parameters.items())
    about = ", ".join(f"{key} {value}" for key, value in measurement.about.items())
    rounds, limits = measurement.rounds, measurement.limits
    noise = spread(_played(rounds, Jobs(rounds, limits), limits, growing.parameters))
    return "\n".join(
        [
            *lines,
            "",
            f"Fitted: {named}.",
            "",
            f"One measurement of a first token is off the median of its {REPEATS} by {_percent(noise)}.",
            "",
            f"Measured on: {about}.",
        ]
    )


def _percent(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{pair[0]:.1%} / {pair[1]:.1%}"


# As a file.


def write(path: Path, measurement: Measurement, parameters: Mapping[str, float]) -> None:
    """The same bytes for the same measurement."""
    value = [*measurement, parameters]
    path.write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0))


def read(path: Path) -> tuple[Measurement, Mapping[str, float]]:
    """A measurement, and the parameters that were fitted to it."""
    about, limits, totals, rounds, parameters = json.loads(gzip.decompress(path.read_bytes()))
    read_rounds = tuple(_round(*one) for one in rounds)
    return Measurement(about, Limits(*limits), Totals(*totals), read_rounds), parameters


def _round(kind: str, timed: bool, shape: int, requests: list[Any]) -> MeasuredRound:
    return MeasuredRound(kind, timed, shape, tuple(_measured(*request) for request in requests))


def _measured(at_s: float, submit: Any, ttft_s: float, total_s: float, cached_tokens: int) -> Measured:
    name, prompt, reply = submit
    submitted = Submit(name, tuple(Piece(*piece) for piece in prompt), Piece(*reply))
    return Measured(at_s, submitted, ttft_s, total_s, cached_tokens)
