"""Transfers that share the bandwidth of both their ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import ReplicaId
from router.simulator.replay.network import Network

A, B, C, D = (ReplicaId(name) for name in "abcd")
GB = 1e9


def test_a_transfer_alone_has_all_of_it() -> None:
    network = Network(8.0)
    network.start("x", A, B, 2 * GB, 1.0, 100.0)
    assert network.next_time() == pytest.approx(3.0)
    assert network.advance(2.9) == []
    ((name, size, wanted, began, at),) = network.advance(5.0)
    assert (name, size, wanted, began) == ("x", 2 * GB, 2 * GB, 1.0)
    assert at == pytest.approx(3.0)
    assert network.next_time() is None


@pytest.mark.parametrize(("source", "target"), [(A, C), (C, B)])
def test_two_with_an_end_in_common_share_it_and_the_rest_is_faster(
    source: ReplicaId, target: ReplicaId
) -> None:
    network = Network(8.0)
    network.start("x", A, B, 1 * GB, 0.0, 100.0)
    network.start("y", source, target, 3 * GB, 0.0, 100.0)
    # Half a GB/s each until the first is done after 2 s, then one.
    assert [(arrival.name, round(arrival.at, 6)) for arrival in network.advance(10.0)] == [
        ("x", 2.0),
        ("y", 4.0),
    ]


def test_those_without_an_end_in_common_do_not_share() -> None:
    network = Network(8.0)
    network.start("x", A, B, 1 * GB, 0.0, 100.0)
    network.start("y", B, A, 1 * GB, 0.0, 100.0)
    network.start("z", C, D, 1 * GB, 0.0, 100.0)
    assert {round(arrival.at, 6) for arrival in network.advance(10.0)} == {1.0}


def test_at_its_deadline_a_transfer_ends_with_what_has_come() -> None:
    network = Network(8.0)
    network.start("x", A, B, 4 * GB, 0.0, 1.5)
    (arrival,) = network.advance(10.0)
    assert (arrival.size, arrival.at) == (pytest.approx(1.5 * GB), 1.5)


def test_whoever_is_gone_ends_its_transfers() -> None:
    network = Network(8.0)
    network.start("x", A, B, 4 * GB, 0.0, 100.0)
    network.start("y", C, D, 4 * GB, 0.0, 100.0)
    network.cut(A, 1.0)
    (arrival,) = network.advance(1.0)
    assert (arrival.name, arrival.size) == ("x", pytest.approx(1 * GB))
    assert network.next_time() == pytest.approx(4.0)


@given(
    st.lists(
        st.tuples(st.sampled_from((A, B)), st.sampled_from((C, D)), st.floats(1, 1e10), st.floats(0, 5)),
        min_size=1,
        max_size=12,
    )
)
def test_all_that_was_sent_comes_in_no_less_time_than_it_takes(
    transfers: list[tuple[ReplicaId, ReplicaId, float, float]],
) -> None:
    network = Network(8.0)
    now = 0.0
    arrivals = []
    for number, (source, target, size, gap) in enumerate(transfers):
        now += gap
        arrivals += network.advance(now)
        network.start(str(number), source, target, size, now, 1e9)
    while (at := network.next_time()) is not None:
        arrivals += network.advance(at)
    assert sorted(arrival.name for arrival in arrivals) == sorted(map(str, range(len(transfers))))
    for arrival in arrivals:
        assert arrival.size == arrival.wanted
        assert arrival.at - arrival.began >= arrival.size / GB * (1 - 1e-6) - 1e-9
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
