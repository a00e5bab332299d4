"""Policies that come as text: which are in force afterwards, and whose fault is where."""

import pytest

from router.base.errors import SettingsError
from router.settings.load import load_config
from router.settings.submitted import submit_policies

ONE = "version: 1\npolicy: one\nstrategy: ring\n"
TWO = "version: 1\npolicy: two\nstrategy: least-loaded\n"


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "router.yaml"
    path.write_text(
        "version: 1\npolicies: [home, ring]\n"
        "routes: [{match: {path: /v1/embeddings}, policy: least-loaded}]\n"
    )
    return load_config(path)


def names(loaded):
    return [policy.value.policy for policy in loaded.policies]


def test_the_first_is_the_default_and_those_of_routes_stay_behind(base):
    assert names(base) == ["home", "ring", "least-loaded"]
    assert names(submit_policies(f"{ONE}---\n{TWO}".encode(), base, ())) == ["one", "two", "least-loaded"]
    assert names(base) == ["home", "ring", "least-loaded"]


def test_one_that_a_route_names_takes_the_place_of_its_namesake(base):
    mine = TWO.replace("two", "least-loaded") + "overload: {in_flight: 3}\n"
    after = submit_policies(mine.encode(), base, ())
    assert names(after) == ["least-loaded"]
    assert after.policies[0].value.overload.in_flight == 3


def test_every_fault_of_all_documents_has_its_line(base):
    text = ONE + "what: 1\n---\n" + TWO.replace("least-loaded", "leats-loaded")
    with pytest.raises(SettingsError) as refused:
        submit_policies(text.encode(), base, ())
    assert [fault.split(": ")[0] for fault in refused.value.faults] == ["body:4", "body:8"]
    assert "least-loaded" in refused.value.faults[1]


def test_a_name_that_is_given_twice_is_a_fault(base):
    with pytest.raises(SettingsError) as refused:
        submit_policies(f"{ONE}---\n{ONE}".encode(), base, ())
    assert refused.value.faults == ["body:6: policy: 'one' is already on line 2"]


@pytest.mark.parametrize("text", [b"", b"[]", b"a: [", b"\xff", b"# nothing\n"])
def test_what_is_no_policy_is_refused(base, text):
    with pytest.raises(SettingsError, match="body"):
        submit_policies(text, base, ())


def test_code_is_taken_only_where_it_is_known(base):
    own = ONE.replace("ring", "router.core.strategies.ring:RingOnly").encode()
    with pytest.raises(SettingsError, match="not loaded at the start"):
        submit_policies(own, base, ())
    assert names(submit_policies(own, base, {"router.core.strategies.ring:RingOnly"})) == [
        "one",
        "least-loaded",
    ]
