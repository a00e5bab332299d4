"""Metrics of pairs of a prefill and a decode replica: who computed prompts, and why nothing came back."""

from collections.abc import Mapping
from typing import Protocol

from opentelemetry.sdk.metrics.export import Metric

from router.core.pairbook import PairBook
from router.telemetry.points import Builder


class ReleaseSource(Protocol):
    """What metrics ask of whoever lets go of KV at decode replicas."""

    @property
    def released(self) -> Mapping[bool, int]:
        """Offers, by whether their replica could be told."""
        ...


def pair_metrics(book: PairBook, releases: ReleaseSource | None, build: Builder) -> list[Metric]:
    """How pairs went. None where `releases` is `None`: no replica ever prefilled for others."""
    if releases is None:
        return []
    return [
        build.counter(
            "homing_pair_prompts",
            "Prompts of turns that a pair of replicas was to have, by who computed them.",
            "{prompt}",
            [({"result": end.value}, count) for end, count in book.ends.items()],
        ),
        build.counter(
            "homing_pair_unreturned",
            "Prompts that prefill computed without what decode held of the session, by why.",
            "{prompt}",
            [({"why": why.value}, count) for why, count in book.unreturned.items()],
        ),
        build.counter(
            "homing_pair_unclaimed",
            "Answers of pairs that left nothing for the next turn's prefill to fetch, by why.",
            "{answer}",
            [({"why": why.value}, count) for why, count in book.unclaimed.items()],
        ),
        build.gauge(
            "homing_pair_offers",
            "Turns whose KV decode holds for the next one.",
            "{turn}",
            [({}, len(book.claims))],
        ),
        build.counter(
            "homing_pair_releases",
            "What decode held and nobody was to fetch, by whether it could be told so.",
            "{turn}",
            [({"told": str(told).lower()}, count) for told, count in releases.released.items()],
        ),
    ]
