"""The decision as a value."""

from router.base.ids import ReplicaId
from router.core.decide import Candidate, Decision, Kind


def test_the_chosen_candidate_is_the_one_of_that_name() -> None:
    options = tuple(
        Candidate(ReplicaId(name), cached, 0, 0, 0, None, None, 0.0, 0.0, None)
        for name, cached in (("a", 1), ("b", 2))
    )
    decision = Decision(ReplicaId("b"), Kind.HOME, "", "p", options, None, None, 10, 2, 0, 0.0)
    assert decision.chosen is options[1]
