"""Who listens to a router, by what its config says."""

from pathlib import Path

from router.base.clock import SystemClock
from router.settings.config import Telemetry
from router.telemetry.points import Builder
from router.telemetry.prometheus import render
from router.telemetry.recording import Recording


def recording(**written: str) -> Recording:
    return Recording(
        Telemetry.model_validate(written),
        SystemClock(),
        secret=b"s",
        url_of=lambda _: None,
        worker=1,
        workers=2,
    )


def shown(made: Recording) -> str:
    return render([metric for section in made.sections for metric in section(Builder(1, 2))])


async def test_without_a_word_nothing_is_logged_or_traced(turn, decided, ended) -> None:
    made = recording()
    assert (made.access_log, made.span_export, made.tracing, made.sections) == (None, None, None, ())
    made.start()
    made.observer.on_decision(turn, decided())
    made.observer.on_ended(ended(decided()))
    assert len(made.recent.newest(10)) == 1
    assert made.counters.replicas
    made.use([("a", "b")])
    await made.close()


async def test_a_log_and_a_collector_are_told_of_turns_and_have_metrics(
    turn, decided, ended, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    # Nobody listens there: port 9 throws away what it gets, where there is somebody at all.
    made = recording(access_log=str(path), otlp="http://127.0.0.1:9")
    assert made.tracing is not None
    assert made.span_export is not None
    turn = turn.replace(trace=made.tracing.begin(b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01", b""))
    made.start()
    made.observer.on_ended(ended(decided()).replace(turn=turn))
    assert made.span_export.waiting == 1
    made.use([("a", "b")])
    await made.close()
    await made.close()
    assert path.read_text().count("\n") == 1
    assert made.span_export.lost == 1
    assert 'homing_trace_spans_total{result="lost"} 1' in shown(made)
    assert "homing_access_log" in shown(made)
