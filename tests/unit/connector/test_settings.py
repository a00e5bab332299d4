"""What an operator may tell the connector, and what is refused."""

import pytest

from router.connector.settings import Settings, SettingsFault, read_settings


def test_nothing_given_is_the_defaults() -> None:
    assert read_settings(None) == read_settings({}) == Settings()


def test_values_are_taken_and_whole_numbers_may_stand_for_seconds() -> None:
    given = read_settings({"agent": "/tmp/a.sock", "engine": "r1", "mode": "off", "deadline_s": 3})
    assert (given.agent, given.engine, given.mode, given.deadline_s) == (
        "/tmp/a.sock",
        "r1",
        "off",
        3.0,
    )
    assert isinstance(given.deadline_s, float)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sockte": "x"}, "sockte: unknown"),
        ({"agent": 3}, "agent: 3 is no text"),
        ({"agent": ""}, "agent: is empty"),
        ({"min_tokens": 1.5}, "min_tokens: 1.5 is no whole number"),
        ({"min_tokens": True}, "min_tokens: True is no whole number"),
        ({"stall_s": "1"}, "stall_s: '1' is no number"),
        ({"stall_s": 0}, "stall_s: 0.0 is not between"),
        ({"answer_s": 0}, "answer_s: 0.0 is not between"),
        ({"deadline_s": float("nan")}, "deadline_s: nan is not between"),
        ({"mode": "push-pool"}, "mode: 'push-pool' is none of off, both"),
        ({"headroom": 0.5}, "headroom: 0.5 is not between"),
        ({"slots_ahead": -1}, "slots_ahead: -1 is negative"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsFault) as fault:
        read_settings(given)
    assert words in str(fault.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsFault) as fault:
        read_settings({"agent": 3, "sockte": "x"})
    assert len(str(fault.value).splitlines()) == 2
    with pytest.raises(SettingsFault) as fault:
        read_settings({"engine": "", "stall_s": -1.0, "mode": ""})
    assert len(str(fault.value).splitlines()) == 3
