"""A policy's values and their bounds."""

import pytest
from pydantic import ValidationError

from router.settings.load import load_policy
from router.settings.locate import shipped_policies
from router.settings.policy import Policy, Session


def policy(**keys: object) -> Policy:
    return Policy.model_validate({"version": 1, "policy": "p", "strategy": "ring", **keys}, strict=False)


def test_turns_are_dispatched_at_once_unless_a_policy_says_otherwise():
    assert policy().queue.order == "engine"


def test_headers_are_kept_in_the_form_they_are_compared_in():
    assert policy(session={"headers": ["X_Session_ID"]}).session.headers == ("x-session-id",)


def test_null_lifts_the_limit_on_kv_usage():
    assert policy().overload.kv_usage == 0.98
    assert policy(overload={"kv_usage": None}).overload.kv_usage is None


def test_moving_home_may_be_free_but_a_stall_must_be_a_time():
    assert policy(price={"move": 0}).price.move == 0.0
    with pytest.raises(ValidationError, match="must be more than 0"):
        policy(price={"pull": {"stall": 0}})


def test_attempts_after_a_death_are_attempts():
    assert policy(retry={"attempts": 2, "after_death": 2}).retry.after_death == 2
    # Without further attempts none after a death is asked for either.
    assert policy(retry={"attempts": 0}).retry.attempts == 0
    with pytest.raises(ValidationError, match="more than attempts"):
        policy(retry={"attempts": 0, "after_death": 1})


@pytest.mark.parametrize(
    "keys",
    [
        {"place": {"vnodes": 0}},
        {"place": {"bound": {"relative": 0.9}}},
        {"place": {"bound": {"absolute": -1}}},
        {"queue": {"max": 0}},
        {"overload": {"kv_usage": 0}},
        {"retry": {"budget": 1.1}},
        {"retry": {"attempts": 11}},
        {"session": {"idle": 0}},
        {"policy": "a b"},
        {"version": 2},
    ],
)
def test_figures_out_of_bounds_are_refused(keys):
    with pytest.raises(ValidationError):
        policy(**keys)


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_a_shipped_policy_finds_a_session_wherever_the_documentation_says(name):
    assert load_policy(name).value.session == Session()
