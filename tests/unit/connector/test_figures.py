"""Counts, observations and gauges travel as plain mappings and add up."""

from router.connector.figures import Counting, add_up, label_of, name_of, summary


def test_what_was_counted_is_taken_once() -> None:
    counting = Counting()
    assert counting.take() is None
    counting.add("asks")
    counting.add("asks", 2)
    counting.add("offers", label="absent")
    counting.observe("load_seconds", 0.5)
    counting.show("agent", 3, label="blocks")
    assert counting.take() == {"asks": 3, "offers:absent": 1, "load_seconds": [0.5], "agent:blocks": 3}
    assert counting.take() is None


def test_two_sides_add_up_and_a_gauge_shows_the_later_value() -> None:
    one = {"asks": 1, "load_seconds": [0.1], "agent:blocks": 3, "agent_connected": 0.0}
    other = {"asks": 2, "load_seconds": [0.2], "agent:blocks": 5, "loads:done": 1, "agent_connected": 1.0}
    both = add_up(one, other)
    assert both == {
        "asks": 3,
        "load_seconds": [0.1, 0.2],
        "agent:blocks": 5,
        "loads:done": 1,
        "agent_connected": 1.0,
    }
    assert one["load_seconds"] == [0.1]


def test_adding_up_does_not_share_lists_with_what_was_added() -> None:
    other = {"load_seconds": [0.2]}
    both = add_up({}, other)
    both["load_seconds"].append(1.0)
    assert other == {"load_seconds": [0.2]}


def test_a_line_in_the_log_has_one_number_for_each() -> None:
    assert summary({"asks": 3, "load_seconds": [0.1, 0.3], "agent:blocks": 5}) == {
        "asks": 3,
        "load_seconds": 0.2,
    }


def test_a_key_is_a_name_and_maybe_a_label() -> None:
    assert (name_of("offers:hint:replayed"), label_of("offers:hint:replayed")) == ("offers", "hint:replayed")
    assert (name_of("asks"), label_of("asks")) == ("asks", "")
