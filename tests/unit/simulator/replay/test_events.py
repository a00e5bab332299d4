"""How a fleet's changes are written."""

import pytest

from router.simulator.replay.events import FleetEvent, check_events, parse_event


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


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["kill:r2@1s"], "kill:r2@1s: there is no replica r2 then, but r0, r1"),
        (["drain:r2@1s", "add:r2@2s"], "no replica r2 then"),
        (["add:r1@1s"], "there is a replica r1 already"),
        (["kill:r1@1s", "add:r1@2s"], "there is a replica r1 already"),
        (["add:r2@1s", "add:r2@2s"], "there is a replica r2 already"),
        (["kill:r0@2s", "kill:r0@1s"], "kill:r0@2s: r0 is dead already"),
        (["start:r0@1s"], "r0 lives"),
        (["start:r0@1s", "kill:r0@2s"], "r0 lives"),
    ],
)
def test_what_cannot_happen_to_the_fleet_is_refused(texts: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_events([parse_event(text) for text in texts], ["r0", "r1"])


def test_what_can_happen_may_be_written_in_any_order() -> None:
    texts = ["start:r0@3s", "add:r2@1s", "kill:r0@2s", "drain:r2@2s", "undrain:r0@9s", "kill:r0@10s"]
    check_events([parse_event(text) for text in texts], ["r0", "r1"])
