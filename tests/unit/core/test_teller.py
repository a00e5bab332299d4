"""Who listens is told, and one that raises is told nothing further."""

from router.base.ids import ReplicaId
from router.core.decide import Decision, Kind
from router.core.observe import Ended, Outcome
from router.core.observer import Silent
from router.core.request import Turn
from router.core.teller import Teller
from tests.support.turns import A, Recorder, turn


def decision() -> Decision:
    return Decision(A, Kind.NEW, "", "p", (), None, None, 0, 0, 0, 0.0)


def ended() -> Ended:
    return Ended(turn(), decision(), Outcome.COMPLETED, None, 0.5, 1.0, 1.0)


class Full(Silent):
    """Fails at all that there is to tell."""

    def on_decision(self, turn: Turn, decision: Decision) -> None:
        raise OSError("full")

    def on_ended(self, ended: Ended) -> None:
        raise OSError("full")

    def on_restarted(self, replica: ReplicaId, now: float) -> None:
        raise OSError("full")


def test_each_fact_is_told() -> None:
    recorder = Recorder()
    teller = Teller(recorder, None)  # type: ignore[arg-type] # hears less than there is to tell
    teller.decided(turn(), decision())
    teller.ended(ended())
    teller.tell(lambda o: o.on_restarted(A, 1.0))
    assert recorder.facts == [
        ("decision", Kind.NEW),
        ("ended", (Outcome.COMPLETED, 0.5)),
        ("restarted", A),
    ]


def test_nobody_need_listen() -> None:
    teller = Teller(None, None)
    teller.decided(turn(), decision())
    teller.ended(ended())
    teller.tell(lambda o: o.on_restarted(A, 1.0))
    assert teller.observer is None


def test_one_that_raises_is_detached_whatever_it_was_told_and_that_is_reported() -> None:
    for say in (
        lambda teller: teller.decided(turn(), decision()),
        lambda teller: teller.ended(ended()),
        lambda teller: teller.tell(lambda o: o.on_restarted(A, 1.0)),
    ):
        reported: list[Exception] = []
        teller = Teller(Full(), reported.append)
        say(teller)
        say(teller)
        assert [str(error) for error in reported] == ["full"]
        assert teller.observer is None
    silent = Teller(Full(), None)
    silent.ended(ended())
    assert silent.observer is None
