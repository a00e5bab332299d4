import pytest

from router.base.ids import ReplicaId
from router.controlplane.discovery import SourceStatus
from router.controlplane.kv_feed import FeedStatus
from router.controlplane.overview import Notice, fleet_totals, is_ready, notices, why_not_ready
from router.controlplane.reload import Outcome, Reload
from router.core.fleet import ReplicaStatus, Report, Role


def replica(name: str = "a", health: str = "healthy", why: str = "", **more: object) -> ReplicaStatus:
    fields: dict[str, object] = {
        "draining": False,
        "models": None,
        "in_flight": 3,
        "pending_tokens": 40,
        "working_set_tokens": 500,
        "sessions": 2,
        "index_segments": 60,
        "report": None,
        "report_age_s": None,
        "capacity_tokens": None,
        "recent_failures": 0.0,
        "restarts": 0,
        "trust": 1.0,
        "held": 0,
        "free_tokens": None,
        "horizon_tokens": 8192,
    }
    return ReplicaStatus(ReplicaId(name), f"http://{name}", health, why, **(fields | more))  # type: ignore[arg-type]


def told(*statuses: ReplicaStatus, **more: object) -> list[Notice]:
    others: dict[str, object] = {
        "reload": None,
        "sources": (),
        "feeds": (),
        "agents": {},
        "breakers": {},
        "stopping": False,
        "listening": True,
    }
    return notices(statuses, **(others | more))  # type: ignore[arg-type]


def test_what_is_not_told_is_in_no_sum() -> None:
    totals = fleet_totals(
        [
            replica(capacity_tokens=1000, report=Report(kv_usage=0.5)),
            replica("b", "down", capacity_tokens=3000, report=Report()),
            replica("c", draining=True),
        ]
    )
    assert totals == {
        "replicas": 3,
        "health": {"starting": 0, "healthy": 2, "probation": 0, "down": 1},
        "draining": 1,
        "in_flight": 9,
        "pending_tokens": 120,
        "sessions": 6,
        "working_set_tokens": 1500,
        "capacity_tokens": 4000,
        "kv_usage": 0.5,
    }
    nothing = fleet_totals([])
    assert (nothing["capacity_tokens"], nothing["kv_usage"], nothing["in_flight"]) == (None, None, 0)


def test_all_well_is_no_news() -> None:
    assert told(replica(why="first probe passed"), replica("b")) == []


@pytest.mark.parametrize(
    ("status", "level", "text"),
    [
        (replica("b", "down", "refused"), "warning", "b is down: refused"),
        (replica("b", "starting", "not probed yet"), "note", "b is starting: not probed yet"),
        (replica("b", "probation"), "note", "b is probation"),
        (replica("b", draining=True), "note", "b is draining"),
        (replica("b", draining=True, leaving=True), "note", "b is leaving the fleet"),
        (replica("b", why="turns failed in a row (3): cut", recent_failures=2.5), "warning", None),
        (replica("b", report=Report(kv_usage=0.991)), "note", "b: its KV is full (99%)"),
    ],
)
def test_a_replica_that_is_not_as_it_should_be_is_named(
    status: ReplicaStatus, level: str, text: str | None
) -> None:
    [notice] = told(replica(), status)
    assert (notice.level, notice.about, notice.name) == (level, "replicas", "b")
    assert notice.text == (text or "b: turns fail there: turns failed in a row (3): cut")


def test_nobody_to_take_turns_is_a_fault_and_comes_first() -> None:
    assert [notice.level for notice in told(replica("a", "down"))] == ["fault", "warning"]
    assert told()[0].text == "there are no replicas"
    assert told(replica(), stopping=True)[0].about == "router"
    assert not is_ready([])
    assert is_ready([replica("a", "probation")])
    assert not is_ready([replica(draining=True)])
    assert not is_ready([replica(role=Role.PREFILL)])
    assert is_ready([replica(role=Role.PREFILL), replica("b", role=Role.DECODE)])
    assert why_not_ready(replica("a", "down", "refused")) == "a is down: refused"
    assert why_not_ready(replica(role=Role.PREFILL)) == "a only prefills for others"
    assert why_not_ready(replica("a", "down", "refused", role=Role.PREFILL)) == "a is down: refused"


def test_a_port_that_is_not_open_yet_is_noted() -> None:
    [notice] = told(replica(), listening=False)
    assert notice == Notice("note", "router", "", "the data port does not listen yet")
    assert [notice.level for notice in told(listening=False)] == ["fault", "note"]
    [notice] = told(replica(), listening=False, stopping=True)
    assert notice.level == "fault"


def test_settings_that_were_refused_are_a_fault_until_good_ones_come() -> None:
    [notice] = told(replica(), reload=Reload(Outcome.REFUSED, "SIGHUP", 1.0))
    assert (notice.level, notice.about) == ("fault", "policy")
    assert "SIGHUP" in notice.text
    assert told(replica(), reload=Reload(Outcome.APPLIED, "SIGHUP", 1.0)) == []


def test_what_the_router_learns_from_is_named_where_it_is_silent() -> None:
    feed = FeedStatus(ReplicaId("a"), False, "connection lost", 1, 0, 1, 0, 0)
    found = told(
        replica(),
        sources=(SourceStatus("dns", 2, "no such name", 3.0, 1), SourceStatus("file", 2, "", 3.0, 0)),
        feeds=(feed, feed._replace(live=True)),
        agents={ReplicaId("a"): "refused", ReplicaId("b"): ""},
        breakers={ReplicaId("a"): "returning", ReplicaId("b"): "open", ReplicaId("c"): "closed"},
    )
    assert [(notice.about, notice.name) for notice in found] == [
        ("discovery", "dns"),
        ("kv-events", "a"),
        ("kv-agents", "a"),
        ("kv-agents", "b"),
    ]
    assert {notice.level for notice in found} == {"warning"}
