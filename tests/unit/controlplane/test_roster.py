"""The roster: who is listed, who leaves and when, who gives way to whom."""

from hypothesis import given
from hypothesis import strategies as st

from router.controlplane.roster import Listed, Roster
from router.core.fleet import ReplicaSpec


def listed(*names: str, port: int = 8000) -> list[Listed]:
    return [Listed(ReplicaSpec(name, f"http://{name}:{port}")) for name in names]


def roster() -> Roster:
    return Roster(["config", "dns"], hold_s=30.0, most_s=900.0)


def names(of: Roster) -> list[str]:
    return [one.spec.id for one in of.fleet]


def idle(_replica: str) -> bool:
    return False


def busy(_replica: str) -> bool:
    return True


def test_sources_add_up_and_only_changes_count():
    of = roster()
    assert of.list("config", listed("a"), 0.0)
    assert of.list("dns", listed("b", "c"), 0.0)
    assert not of.list("dns", listed("c", "b"), 1.0)
    assert sorted(names(of)) == ["a", "b", "c"]
    assert of.leaving == frozenset()


def test_one_that_vanished_leaves_and_is_gone_once_it_is_idle_and_its_time_is_over():
    of = roster()
    of.list("dns", listed("a", "b"), 0.0)
    assert of.list("dns", listed("a"), 10.0)
    assert (names(of), of.leaving) == (["a", "b"], {"b"})
    assert not of.sweep(39.0, idle)
    assert not of.sweep(41.0, busy)
    assert of.sweep(41.0, idle)
    assert (names(of), of.leaving) == (["a"], frozenset())


def test_one_that_never_falls_idle_is_gone_in_the_end():
    of = roster()
    of.list("dns", listed("a", "b"), 0.0)
    of.list("dns", listed("a"), 10.0)
    assert not of.sweep(909.0, busy)
    assert of.sweep(910.0, busy)
    assert names(of) == ["a"]


def test_one_that_is_back_in_time_has_never_been_away():
    of = roster()
    of.list("dns", listed("a", "b"), 0.0)
    of.list("dns", listed("a"), 10.0)
    assert of.list("dns", listed("a", "b"), 20.0)
    assert of.leaving == frozenset()
    of.list("dns", listed("a"), 35.0)
    assert not of.sweep(60.0, idle), "its time begins anew"


def test_another_address_under_the_same_name_takes_its_place_at_once():
    of = roster()
    of.list("dns", listed("a"), 0.0)
    assert of.list("dns", listed("a", port=9000), 1.0)
    assert [one.spec.url for one in of.fleet] == ["http://a:9000"]
    assert of.leaving == frozenset()


def test_another_name_for_the_same_address_is_no_second_replica():
    of = roster()
    of.list("dns", listed("a"), 0.0)
    of.list("dns", [Listed(ReplicaSpec("new", "http://a:8000"))], 1.0)
    assert (names(of), of.leaving) == (["new"], frozenset())


def test_the_earlier_source_has_its_way_and_the_other_is_told_of():
    of = roster()
    of.list("config", listed("a"), 0.0)
    of.list("dns", [*listed("a", port=9000), Listed(ReplicaSpec("x", "http://a:8000"))], 0.0)
    assert [(one.spec.id, one.spec.url) for one in of.fleet] == [("a", "http://a:8000")]
    assert of.conflicts == (
        "dns: a at http://a:9000 is left out: http://a:8000 has its name",
        "dns: x is left out: http://a:8000 is a already",
    )
    of.list("config", (), 5.0)
    assert [(one.spec.id, one.spec.url) for one in of.fleet] == [
        ("a", "http://a:9000"),
        ("x", "http://a:8000"),
    ]
    assert of.conflicts == ()


def test_the_same_replica_from_two_sources_stays_while_either_names_it():
    of = roster()
    of.list("config", listed("a"), 0.0)
    assert not of.list("dns", listed("a"), 0.0)
    assert of.conflicts == ()
    assert not of.list("config", (), 1.0)
    assert of.list("dns", (), 2.0)
    assert of.leaving == {"a"}


@given(
    st.lists(st.tuples(st.sampled_from(["config", "dns"]), st.sets(st.sampled_from("abcde"))), max_size=12)
)
def test_whoever_is_named_is_there_and_does_not_leave(said):
    of = roster()
    last: dict[str, set[str]] = {}
    for now, (source, who) in enumerate(said):
        before = (names(of), of.leaving)
        changed = of.list(source, listed(*sorted(who)), float(now))
        last[source] = who
        named = set().union(*last.values())
        assert named <= set(names(of))
        assert of.leaving == set(names(of)) - named
        assert changed == ((names(of), of.leaving) != before)
    of.sweep(1e6, idle)
    assert set(names(of)) == set().union(*last.values())


def test_keys_do_not_show():
    assert "hush" not in repr(Listed(ReplicaSpec("a", "http://a:1"), "hush"))
