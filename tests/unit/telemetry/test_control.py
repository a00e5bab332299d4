"""The control plane's metrics."""

from router.telemetry.control import reload_metrics
from router.telemetry.points import Builder
from router.telemetry.prometheus import render


class Reloads:
    refused = True

    def tally(self) -> dict[str, int]:
        return {"applied": 2, "refused": 1}


def lines(*metrics) -> list[str]:
    return [line for line in render(metrics).splitlines() if not line.startswith("#")]


def test_reloads_are_counted_and_a_refused_one_shows():
    assert lines(*reload_metrics(Reloads(), Builder(1, 2))) == [
        'homing_reloads_total{outcome="applied"} 2',
        'homing_reloads_total{outcome="refused"} 1',
        "homing_reload_refused 1",
    ]
