"""How a fleet's changes are written."""

import pytest

from router.simulator.replay.events import FleetEvent, parse_event


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("kill:r0@10m", FleetEvent(600.0, "kill", "r0")),
        ("add:r12@0", FleetEvent(0.0, "add", "r12")),
        ("undrain:r1@1500ms", FleetEvent(1.5, "undrain", "r1")),
    ],
)
def test_an_event_is_what_whom_and_when(text: str, event: FleetEvent) -> None:
    assert parse_event(text) == event


@pytest.mark.parametrize("text", ["", "kill", "kill:r0", "burn:r0@1s", "kill:@1s", "kill:r0@", "kill:r 0@1s"])
def test_what_is_no_event_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="kill:r0@10m"):
        parse_event(text)


def test_a_time_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_event("kill:r0@10")
