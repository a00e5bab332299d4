"""Alert rules and dashboard ask only for what the router exposes.

`tests/unit/telemetry/test_metrics.py` holds the tables of `docs/metrics.md` against the metrics that are
built, names, types and labels; here the files are held against the tables.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.promql import Selected, read

from router.base.errors import ErrorKind
from router.core.decide import Kind
from router.core.estimate.pulls import Breaker
from router.core.health import State
from router.core.observe import Outcome, WaitEnd
from router.telemetry.counters import PullResult

DOCS = Path(__file__).parents[2] / "docs"
RULES = yaml.safe_load((DOCS / "monitoring" / "alerts.yaml").read_text())
BOARD = json.loads((DOCS / "monitoring" / "grafana.json").read_text())

# Prometheus puts it on whatever it scrapes.
TARGET = frozenset({"instance"})

VALUES = {
    "kind": {*Kind, *ErrorKind},
    "outcome": set(Outcome),
    "state": {*State, *Breaker},
    "end": set(WaitEnd),
    "result": {*PullResult, "written", "lost", "exported", "rejected", "dropped"},
}
"""What a label may say."""


class Exposed(NamedTuple):
    kind: str
    labels: frozenset[str]


def exposed() -> dict[str, Exposed]:
    """Every series of the router, by name, those of a histogram included; and what is used of KV agents'."""
    rows = re.findall(
        r"^\| `(homing_\w+)` \| (\w+) \|([^|]*)\|", (DOCS / "metrics.md").read_text(), re.MULTILINE
    )
    found = {}
    for name, kind, labels in rows:
        own = frozenset(re.findall(r"`(\w+)`", labels))
        if kind == "histogram":
            found[f"{name}_bucket"] = Exposed("counter", own | {"le"})
            found[f"{name}_sum"] = found[f"{name}_count"] = Exposed("counter", own)
        else:
            found[name] = Exposed(kind, own)
    # `tests/integration/test_kv_agents.py` reads it from an agent.
    found["homing_kv_pull_seconds_bucket"] = Exposed("counter", frozenset({"le"}))
    return found


EXPOSED = exposed()


def alerts() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Where each expression stands, and how it reads once Grafana has filled it in."""
    shown = [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*"))
        for panel in panels()
        for target in panel["targets"]
    ]
    return [(rule["alert"], rule["expr"]) for rule in alerts()] + shown


def check(selected: Selected) -> None:
    """Fails for what the router does not expose so."""
    series = EXPOSED.get(selected.metric)
    assert series is not None, f"no series is called {selected.metric}"
    for label, operator, value in selected.matchers:
        assert label in series.labels | TARGET, f"{selected.metric} has no label {label}"
        if label in VALUES:
            for one in value.split("|") if "~" in operator else [value]:
                assert one in VALUES[label], f"no {label} is {one}"
    # A group may have labels of the other side of a division; what has no such label makes one group of all.
    assert selected.grouped <= series.labels | TARGET, f"{selected.metric} has not all of {selected.grouped}"
    if selected.over is not None:
        assert series.kind == "counter", f"{selected.metric} is a {series.kind}: rate() is for counters"
    else:
        assert series.kind == "gauge", f"{selected.metric} only ever grows: take its rate()"
    assert selected.quantile is ("le" in selected.grouped), "a quantile is of buckets by le"


@pytest.mark.parametrize(("place", "expression"), queries())
def test_an_expression_reads_and_asks_for_what_is_exposed(place: str, expression: str) -> None:
    selected = read(expression)
    assert selected
    for one in selected:
        check(one)


@pytest.mark.parametrize(
    "expression",
    [
        "homing_no_such_thing",
        'homing_replica_health{colour="red"}',
        'homing_replica_health{state="dwon"}',
        'homing_replica_health{state=~"down|dwon"}',
        "sum by (tenant) (homing_replica_health)",
        "rate(homing_replica_in_flight[5m])",
        "homing_retries_total",
        "histogram_quantile(0.9, sum (rate(homing_ttft_seconds_bucket[5m])))",
        "rate(homing_ttft_seconds[5m])",
    ],
)
def test_the_check_finds_what_is_not_exposed(expression: str) -> None:
    [one] = read(expression)
    with pytest.raises(AssertionError):
        check(one)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "homing_info >",
        "rate(homing_retries_total)",
        "homing_retries_total[5m]",
        "rate(homing_retries_total[5])",
        "sum by replica (homing_info)",
        "sum by (replica (homing_info)",
        "(homing_info",
        "homing_info homing_info",
        'homing_info{version="1"',
        "homing_info{version=1}",
        "rat(homing_retries_total[5m])",
        "histogram_quantile(90, rate(homing_ttft_seconds_bucket[5m]))",
        "homing_info ? 1",
        "5x",
    ],
)
def test_what_is_no_expression_does_not_read(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(expression)


def test_every_alert_is_whole() -> None:
    assert list(RULES) == ["groups"]
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"Homing[A-Za-z]+", rule["alert"])
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) <= {"summary", "description"}
        kept = set().union(*(EXPOSED[one.metric].labels for one in read(rule["expr"]))) | TARGET
        for text in rule["annotations"].values():
            used = re.findall(r"\{\{ \$labels\.(\w+) \}\}", text)
            assert text.count("{{") == len(used)
            assert set(used) <= kept, rule["alert"]


def test_every_panel_is_whole_and_none_covers_another() -> None:
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    covered: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not covered & cells, panel["title"]
        covered |= cells
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    for panel in panels():
        text = json.dumps(panel)
        assert set(re.findall(r"\$\{?(\w+)", text)) <= variables | {"__rate_interval"}, panel["title"]
        for target in panel["targets"]:
            keeps = set().union(*(one.grouped for one in read(filled(target["expr"]))))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= keeps, panel["title"]


def filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$instance", ".*")


def test_what_operators_are_promised_is_on_the_board() -> None:
    asked = {one.metric for _, expression in queries() for one in read(expression)}
    assert asked >= {
        "homing_decisions_total",
        "homing_ttft_seconds_bucket",
        "homing_overhead_seconds_bucket",
        "homing_queue_wait_seconds_bucket",
        "homing_replica_held",
        "homing_replica_in_flight",
        "homing_predicted_cached_tokens_total",
        "homing_cached_tokens_total",
        "homing_pulls_total",
        "homing_pull_breaker",
        "homing_kv_pull_seconds_bucket",
        "homing_chain_breaks_total",
    }
