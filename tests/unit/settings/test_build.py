"""From checked settings to what runs: every key reaches its place."""

from pathlib import Path

import pytest

from router.base.ids import OPEN_TENANT
from router.core.fleet import ReplicaSpec
from router.core.plan import Overload, Plan, Retry, SessionRules
from router.core.strategies.ring import RingOnly
from router.settings.build import build_plan, build_plans, build_routes, build_spec
from router.settings.load import load_config
from router.settings.policy import Policy


def policy(**keys: object) -> Policy:
    return Policy.model_validate({"version": 1, "policy": "p", "strategy": "ring", **keys}, strict=False)


def test_a_policy_that_says_nothing_has_the_defaults_of_the_core():
    plan = build_plan(policy())
    assert plan == Plan(name="p", strategy=plan.strategy)
    assert isinstance(plan.strategy, RingOnly)


def test_every_key_of_a_policy_reaches_the_plan():
    plan = build_plan(
        policy(
            session={"headers": ["X_Mine"], "body": ["user"], "derive": False, "idle": "5m"},
            place={"vnodes": 40},
            overload={"in_flight": 8, "kv_usage": None},
            retry={"attempts": 3, "after_death": 1, "budget": 0.5},
            reserved="refuse",
        )
    )
    assert plan == Plan(
        name="p",
        strategy=plan.strategy,
        session=SessionRules(headers=("x-mine",), body=("user",), derive=False, idle_s=300.0),
        overload=Overload(in_flight=8, kv_usage=None),
        retry=Retry(attempts=3, after_death=1, budget=0.5),
        vnodes=40,
        refuse_reserved=True,
    )


def test_routers_that_share_the_work_keep_within_the_limits_together(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "version: 1\npolicy: mine\nstrategy: priced\n"
        "queue: {order: least-missing, max: 100, bytes: 10MiB}\n"
        "overload: {in_flight: 10}\nprice: {pull: {per_source: 2}}\n"
    )
    (tmp_path / "router.yaml").write_text("version: 1\npolicies: [mine.yaml, ring]\n")
    loaded = load_config(tmp_path / "router.yaml")
    mine, ring = build_plans(loaded, 4)
    assert mine.queue is not None
    assert (mine.queue.most, mine.queue.most_bytes, mine.queue.in_flight) == (25, 10 * 2**18, 3)
    assert (mine.overload.in_flight, mine.pull.per_source) == (3, 1)
    assert (ring.queue, ring.overload.in_flight) == (None, None)
    alone = build_plans(loaded)
    assert alone[0].queue is not None
    assert (alone[0].queue.most, alone[0].overload.in_flight) == (100, 10)


def test_a_strategy_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="unknown strategy"):
        build_plan(policy(strategy="prised"))


def test_routes_point_at_the_plans_of_a_config(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        """\
version: 1
policies: [ring, prefix]
routes:
  - {match: {path: /v1/embeddings}, policy: least-loaded}
  - {match: {model: m}, policy: prefix}
replicas:
  - {name: a, url: http://a:1, kv_tokens: 5, api_key_env: KEY}
  - {name: b, url: http://b/}
"""
    )
    loaded = load_config(path)
    plans, routes = build_plans(loaded), build_routes(loaded)
    assert [plan.name for plan in plans] == ["ring", "prefix", "least-loaded"]
    assert [
        plans[routes.match(route, model, OPEN_TENANT)].name
        for route, model in (("/v1/embeddings", "m"), ("/v1/completions", "m"), ("/v1/completions", "n"))
    ] == ["least-loaded", "prefix", "ring"]
    assert [build_spec(replica) for replica in loaded.value.replicas] == [
        ReplicaSpec("a", "http://a:1", 5),
        ReplicaSpec("b", "http://b:80", None),
    ]


def test_the_shipped_config_builds(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    loaded = load_config(Path("config/router.yaml"))
    assert [plan.name for plan in build_plans(loaded)] == ["home", "least-loaded"]
