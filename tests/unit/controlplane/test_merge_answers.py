"""Several workers' answers as one router's."""

from router.controlplane.merge_answers import merge_answers


def replica(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "health": "healthy", "in_flight": 1, "sessions": 4, "capacity_tokens": 900, **more}


def test_replicas_are_told_once_with_the_turns_of_all():
    one = {"replicas": [replica("a", draining=False, report_age_s=2.0), replica("b")]}
    other = {
        "replicas": [replica("b", in_flight=3), replica("a", draining=True, in_flight=2, report_age_s=1.0)]
    }
    assert merge_answers("replicas", [one, other], 100) == {
        "replicas": [replica("a", draining=True, in_flight=3, report_age_s=1.0), replica("b", in_flight=4)]
    }


def test_what_is_missing_is_not_zero():
    one = {"replicas": [{"name": "a", "free_tokens": None, "report": None}]}
    other = {"replicas": [{"name": "a", "free_tokens": 5, "report": {"kv_usage": 0.5}}]}
    merged = {"replicas": [{"name": "a", "free_tokens": 5, "report": {"kv_usage": 0.5}}]}
    assert merge_answers("replicas", [one, other], 100) == merged
    assert merge_answers("replicas", [one, one], 100) == one


def test_sessions_are_told_once_however_many_know_them():
    session = {"key": "k", "home": "a", "turns": 4, "resident_tokens": 100, "age_s": 9.0, "idle_s": 2.0}
    one = {"sessions": [{**session, "breaks": {"digits": 1}}], "total": 1}
    other = {
        "sessions": [
            {**session, "turns": 5, "idle_s": 1.0, "breaks": {"digits": 2}},
            {**session, "key": "l"},
        ],
        "total": 2,
    }
    merged = merge_answers("sessions", [one, other], 100)
    assert merged["sessions"][0] == {**session, "turns": 5, "idle_s": 1.0, "breaks": {"digits": 3}}
    assert ([each["key"] for each in merged["sessions"]], merged["total"]) == (["k", "l"], 2)
    assert len(merge_answers("sessions", [one, other], 1)["sessions"]) == 1


def test_decisions_are_the_latest_of_all():
    one = {"decisions": [{"id": 4, "time": "2026-01-01T00:00:09"}, {"id": 2, "time": "2026-01-01T00:00:01"}]}
    other = {"decisions": [{"id": 3, "time": "2026-01-01T00:00:05"}]}
    merged = merge_answers("decisions", [one, other], 2)
    assert [each["id"] for each in merged["decisions"]] == [4, 3]


def test_turns_that_are_held_are_in_the_order_in_which_they_are_due():
    one = {"held": [{"session": "a", "due_in_s": 3.0}], "total": 4}
    other = {"held": [{"session": "b", "due_in_s": -1.0}], "total": 1}
    merged = merge_answers("held", [one, other], 100)
    assert ([each["session"] for each in merged["held"]], merged["total"]) == (["b", "a"], 5)


def test_shares_and_percentiles_are_those_of_all_turns():
    def lately(turns: int, cached: int, p50: float | None) -> dict[str, object]:
        return {
            "turns": turns,
            "prompt_tokens": 1000,
            "cached_tokens": cached,
            "hit_rate": cached / 1000,
            "turns_per_s": turns / 10,
            "ttft_ms": {"p50": p50},
        }

    merged = merge_answers(
        "overview", [{"lately": lately(30, 900, 10.0)}, {"lately": lately(10, 100, 30.0)}], 100
    )
    assert merged["lately"] == {**lately(40, 1000, 20.0), "prompt_tokens": 2000, "hit_rate": 0.5}
    nothing = {"lately": {"turns": 0, "prompt_tokens": 0, "cached_tokens": 0, "hit_rate": None}}
    assert merge_answers("overview", [nothing, nothing], 100) == nothing


def test_series_end_at_the_same_moment():
    one = {
        "slice_s": 10.0,
        "turns": [1, 2, 3],
        "ttft_p50_ms": [10.0, None, 30.0],
        "kinds": {"new": [1, 0, 0]},
    }
    other = {"slice_s": 10.0, "turns": [5], "ttft_p50_ms": [50.0], "kinds": {"new": [2]}}
    assert merge_answers("history", [one, other], 100) == {
        "slice_s": 10.0,
        "turns": [1, 2, 8],
        "ttft_p50_ms": [10.0, None, 40.0],
        "kinds": {"new": [1, 0, 2]},
    }


def test_the_fleet_is_counted_once_and_a_feed_is_live_where_all_have_it():
    fleet = {
        "fleet": {"replicas": 3, "health": {"healthy": 2, "down": 1}, "in_flight": 5},
        "policies": ["home"],
    }
    merged = merge_answers("overview", [fleet, fleet], 100)
    assert merged == {"fleet": {**fleet["fleet"], "in_flight": 10}, "policies": ["home"]}
    feed = {"replica": "a", "live": True, "why": "", "batches": 7}
    feeds = [{"feeds": [feed]}, {"feeds": [{**feed, "live": False, "why": "lost"}]}]
    assert merge_answers("kv-events", feeds, 100)["feeds"] == [{**feed, "live": False, "why": "lost"}]


def test_flows_between_two_replicas_add_up_and_notices_are_told_once():
    flow = {"source": "a", "target": "b", "pulls": 2, "came_tokens": 100}
    merged = merge_answers("moves", [{"flows": [flow]}, {"flows": [flow, {**flow, "target": "c"}]}], 100)
    assert merged["flows"] == [{**flow, "pulls": 4, "came_tokens": 200}, {**flow, "target": "c"}]
    notice = {"level": "warning", "about": "replicas", "name": "a", "text": "a is down"}
    assert merge_answers("overview", [{"notices": [notice]}, {"notices": [notice]}], 100) == {
        "notices": [notice]
    }


def test_an_agent_answers_where_it_does_for_all_and_each_workers_own_breakers_are_told():
    one = {
        "agents": [{"agent": "a", "up": True, "why": ""}, {"agent": "b", "up": True, "why": ""}],
        "breakers": [{"source": "a", "state": "closed"}, {"source": "b", "state": "closed"}],
    }
    other = {
        "agents": [{"agent": "a", "up": True, "why": ""}, {"agent": "b", "up": False, "why": "refused"}],
        "breakers": [{"source": "a", "state": "closed"}, {"source": "b", "state": "open"}],
    }
    assert merge_answers("kv-agents", [one, other], 100) == {
        "agents": [{"agent": "a", "up": True, "why": ""}, {"agent": "b", "up": False, "why": "refused"}],
        "breakers": [
            {"source": "a", "state": "closed"},
            {"source": "b", "state": "closed"},
            {"source": "b", "state": "open"},
        ],
    }
