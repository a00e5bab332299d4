"""Plays measured rounds on the simulated replica: its times and cached tokens beside the real ones."""

from collections.abc import Sequence
from math import log
from statistics import median, quantiles
from typing import NamedTuple

from loadtest.calibrate.measure import Measured, MeasuredRound
from loadtest.calibrate.script import Limits, Texts, block_hashes
from router.simulator.model import EngineModel, Finished, FirstToken, Job


class Outside(NamedTuple):
    """What a request takes before the engine's scheduler sees it, and its first token after."""

    request_ms: float
    token_ms: float
    """For each token of the prompt."""


class Predicted(NamedTuple):
    """What the model says of a measured request."""

    kind: str
    round: int
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
        """Of the time between first and last token; `None` where there is but one."""
        real = self.real.total_s - self.real.ttft_s
        return abs((self.total_s - self.ttft_s) / real - 1) if self.real.submit.reply.tokens > 1 else None


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
    for number, one in enumerate(rounds):
        arrivals = []
        for request in one.requests:
            job = jobs[request.submit.id]
            delay_ms = outside.request_ms + outside.token_ms * job.prompt_tokens
            arrivals.append((now + request.at_s + delay_ms / 1e3, job))
        events = []
        for at, job in sorted(arrivals, key=lambda arrival: arrival[0]):
            model.submit(job, at)
        events += model.advance(now + 1e6)
        firsts = {event.id: event for event in events if isinstance(event, FirstToken)}
        ends = {event.id: event.at for event in events if isinstance(event, Finished)}
        for request in one.requests:
            first = firsts[request.submit.id]
            sent = now + request.at_s
            ended = ends[request.submit.id]
            predicted.append(
                Predicted(one.kind, number, request, first.at - sent, ended - sent, first.cached_tokens)
            )
        now += 1e6
    return predicted


def log_error(predicted: Sequence[Predicted]) -> float:
    """What a fit makes small: how far predictions are off by factors, too much and too little alike, on
    average. Not squared: a request that the machine held up must not bend all others."""
    total = 0.0
    for one in predicted:
        total += abs(log(one.ttft_s / one.real.ttft_s))
        if one.real.submit.reply.tokens > 1:
            total += abs(log((one.total_s - one.ttft_s) / (one.real.total_s - one.real.ttft_s)))
    return total / len(predicted)


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
