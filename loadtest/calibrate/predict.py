"""Plays measured rounds on the simulated replica: its times and cached tokens beside the real ones."""

from collections.abc import Sequence
from math import log
from statistics import mean, median, quantiles
from typing import NamedTuple

from loadtest.calibrate.measure import Measured, MeasuredRound
from loadtest.calibrate.script import Limits, Texts, block_hashes
from router.simulator.model import EngineModel, Finished, FirstToken, Job


class Outside(NamedTuple):
    """What a request takes outside the scheduler and its steps."""

    request_ms: float
    """To it and back, beside others'."""
    server_ms: float
    """In the API server ahead of it, which takes one request after the other."""


class Predicted(NamedTuple):
    """What the model says of a measured request."""

    kind: str
    shape: int
    place: int
    """In its round."""
    timed: bool
    real: Measured
    ttft_s: float
    total_s: float
    cached_tokens: int

    @property
    def ttft_error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return abs(self.ttft_s / self.real.ttft_s - 1)

    @property
    def decode_error(self) -> float | None:
        """Of the time between first and last token; `None` where they came as one."""
        real = self.real.total_s - self.real.ttft_s
        return abs((self.total_s - self.ttft_s) / real - 1) if real > 0 else None


class Jobs:
    """Requests as the model takes them: their hashes are made once for all plays."""

    def __init__(self, rounds: Sequence[MeasuredRound], limits: Limits) -> None:
        texts = Texts()
        self._jobs: dict[str, Job] = {}
        for one in rounds:
            for request in one.requests:
                submit = request.submit
                hashes = block_hashes(list(texts.tokens([*submit.prompt, submit.reply])), limits.block_size)
                self._jobs[submit.id] = Job(submit.id, submit.prompt_tokens, submit.reply.tokens, hashes)

    def __getitem__(self, name: str) -> Job:
        return self._jobs[name]


def play(
    rounds: Sequence[MeasuredRound], jobs: Jobs, model: EngineModel, outside: Outside
) -> list[Predicted]:
    """Every round on one new replica, each when the one before it has ended."""
    now = 0.0
    predicted: list[Predicted] = []
    for one in rounds:
        arrivals = []
        free = now
        for request in sorted(one.requests, key=lambda request: request.at_s):
            free = max(free, now + request.at_s) + outside.server_ms / 1e3
            arrivals.append((free + outside.request_ms / 1e3, jobs[request.submit.id]))
        events = []
        for at, job in arrivals:
            model.submit(job, at)
        events += model.advance(now + 1e6)
        firsts = {event.id: event for event in events if isinstance(event, FirstToken)}
        ends = {event.id: event.at for event in events if isinstance(event, Finished)}
        for place, request in enumerate(one.requests):
            first = firsts[request.submit.id]
            sent = now + request.at_s
            ended = ends[request.submit.id]
            predicted.append(
                Predicted(
                    one.kind,
                    one.shape,
                    place,
                    one.timed,
                    request,
                    first.at - sent,
                    ended - sent,
                    first.cached_tokens,
                )
            )
        now += 1e6
    return predicted


def typical(predicted: Sequence[Predicted]) -> list[Predicted]:
    """Timed requests of one shape and place as one: medians of what was measured and of what is predicted."""
    alike: dict[tuple[int, int], list[Predicted]] = {}
    for one in predicted:
        if one.timed:
            alike.setdefault((one.shape, one.place), []).append(one)
    return [
        same[0]._replace(
            real=same[0].real._replace(
                ttft_s=median(one.real.ttft_s for one in same),
                total_s=median(one.real.total_s for one in same),
            ),
            ttft_s=median(one.ttft_s for one in same),
            total_s=median(one.total_s for one in same),
        )
        for same in alike.values()
    ]


def spread(predicted: Sequence[Predicted]) -> tuple[float, float]:
    """How far a first token is from the median of its repeats: what no model can foretell."""
    typically = {(one.shape, one.place): one.real.ttft_s for one in typical(predicted)}
    return _summary(
        [abs(one.real.ttft_s / typically[one.shape, one.place] - 1) for one in predicted if one.timed]
    )


def log_error(predicted: Sequence[Predicted]) -> float:
    """What a fit makes small: how far predictions are off by factors, too much and too little alike, on
    average over shapes. Not squared: what the machine held up must not bend all the rest."""
    by_shape: dict[int, list[float]] = {}
    for one in predicted:
        errors = by_shape.setdefault(one.shape, [])
        errors.append(abs(log(one.ttft_s / one.real.ttft_s)))
        if (real := one.real.total_s - one.real.ttft_s) > 0:
            errors.append(abs(log((one.total_s - one.ttft_s) / real)))
    return mean(mean(errors) for errors in by_shape.values())


class Errors(NamedTuple):
    """Of a kind of load: median and 90th percentile of the relative errors."""

    requests: int
    ttft: tuple[float, float]
    decode: tuple[float, float] | None


def errors(predicted: Sequence[Predicted]) -> Errors:
    decode = [error for one in predicted if (error := one.decode_error) is not None]
    return Errors(
        len(predicted),
        _summary([one.ttft_error for one in predicted]),
        _summary(decode) if decode else None,
    )


def _summary(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    return median(values), quantiles(values, n=10, method="inclusive")[-1]
