import logging
from collections.abc import Callable

import pytest

from router.base.errors import ErrorKind
from router.base.ids import ReplicaId, SessionKey
from router.core.decide import Decision
from router.core.observe import Ended, HealthChange, WaitEnd
from router.core.request import Turn
from router.telemetry.health_log import HealthLog

A, B = ReplicaId("a"), ReplicaId("b")


def test_a_replica_that_goes_down_is_a_warning_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    HealthLog().on_health(HealthChange(A, "healthy", "down", "/health answered 503", 1.0))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "replica a: healthy → down (/health answered 503)")
    ]


def test_a_replica_that_returns_is_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    HealthLog().on_health(HealthChange(A, "down", "probation", "", 1.0))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "replica a: down → probation")
    ]


def test_a_restart_is_a_warning_that_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    HealthLog().on_restarted(A, 1.0)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "replica a: restarted, so its cache is cold")
    ]


def test_turns_are_not_logged(
    turn: Turn,
    decided: Callable[..., Decision],
    ended: Callable[..., Ended],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    log = HealthLog()
    log.on_decision(turn, decided())
    log.on_refused(turn, ErrorKind.OVERLOADED, "full", 1.0)
    log.on_waited(turn, 0.5, WaitEnd.DISPATCHED)
    log.on_ended(ended(decided()))
    log.on_moved(SessionKey("k"), A, B, 1.0)
    assert caplog.records == []
