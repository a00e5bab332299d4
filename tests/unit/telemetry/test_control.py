"""The control plane's metrics."""

from router.controlplane.discovery import SourceStatus
from router.controlplane.kv_feed import FeedStatus
from router.telemetry.control import discovery_metrics, feed_metrics, reload_metrics
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


def test_sources_show_what_they_found_and_whether_they_still_can():
    statuses = [SourceStatus("dns", 3, "", 1.0, 2), SourceStatus("file", 0, "gone", None, 1)]
    assert lines(*discovery_metrics(lambda: statuses, Builder(1, 2))) == [
        'homing_discovery_replicas{source="dns"} 3',
        'homing_discovery_replicas{source="file"} 0',
        'homing_discovery_failing{source="dns"} 0',
        'homing_discovery_failing{source="file"} 1',
        'homing_discovery_faults_total{source="dns"} 2',
        'homing_discovery_faults_total{source="file"} 1',
    ]


def test_a_feed_shows_whether_it_is_followed_and_what_it_lost():
    feed = FeedStatus("a", False, "lost", 9, 3, 1, 2, 500)
    assert lines(*feed_metrics(lambda: [feed], Builder(1, 2))) == [
        'homing_kv_feed_live{replica="a"} 0',
        'homing_kv_feed_blocks{replica="a"} 500',
        'homing_kv_feed_batches_total{replica="a"} 9',
        'homing_kv_feed_gaps_total{replica="a"} 3',
        'homing_kv_feed_losses_total{replica="a"} 1',
    ]
