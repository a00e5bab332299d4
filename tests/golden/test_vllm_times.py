"""The simulated replica beside a vLLM server that was timed: cached tokens exactly, times within bounds."""

from pathlib import Path

import pytest

from loadtest.calibrate import times

MEASUREMENT, PARAMETERS = times.read(Path(__file__).with_name("vllm-times.json.gz"))
ERRORS = times.tested(MEASUREMENT, PARAMETERS, times.halves(MEASUREMENT.rounds)[1])


def test_every_request_had_the_cached_tokens_that_the_model_says() -> None:
    assert times.cached_differences(MEASUREMENT) == []
    requests = [request for one in MEASUREMENT.rounds for request in one.requests]
    assert len(requests) > 700
    assert sum(request.cached_tokens > 0 for request in requests) > 100


@pytest.mark.parametrize(
    ("kind", "ttft"),
    [
        ("cold, alone", 0.10),
        ("warm, alone", 0.10),
        ("convoy", 0.20),
        ("beside decodes", 0.20),
        ("load", 0.40),
        ("decoding", 0.40),
        ("all", 0.30),
    ],
)
def test_half_of_the_first_tokens_come_when_the_model_says(kind: str, ttft: float) -> None:
    """Of shapes of load to which nothing was fitted. docs/simulated-replica.md has the figures."""
    assert ERRORS[kind].ttft[0] < ttft
