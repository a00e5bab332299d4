"""What a file asks for without effect is said once, with its line; what it does not ask for is not."""

import pytest

from router.settings.document import parse_document
from router.settings.notices import config_notices, policy_notices


def of_policy(text: str) -> list[str]:
    return policy_notices(parse_document(text.encode(), "p.yaml"))


def of_config(text: str) -> list[str]:
    return config_notices(parse_document(text.encode(), "c.yaml"))


@pytest.mark.parametrize(
    "text",
    [
        "strategy: priced\n",
        "queue: {order: least-missing}\n",
        "strategy: priced\nplace: {bound: {relative: 2}}\nprice: {move: 0}\n",
        "strategy: ring\nprice: {prefill: {seed_tokens_per_s: 9}}\n",
    ],
)
def test_a_policy_without_keys_of_later_versions_has_no_notices(text):
    assert of_policy(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "strategy: ring\nprice:\n  move: 0\n",
            "p.yaml:3: price.move: has no effect with strategy ring, which has no prices",
        ),
        (
            "strategy: ring\nplace:\n  bound: {relative: 2}\n",
            "p.yaml:3: place.bound: has no effect with strategy ring; its own are under 'params'",
        ),
    ],
)
def test_a_policy_key_without_effect_is_said_plainly(text, expected):
    assert of_policy(text) == [expected]


@pytest.mark.parametrize(
    "text", ["version: 1\n", "telemetry: {otlp: null, trace_sample: 0}\n", "replicas: [{name: a}]\n"]
)
def test_a_config_without_keys_of_later_versions_has_no_notices(text):
    assert of_config(text) == []


def test_a_key_without_effect_is_named_with_its_line():
    assert of_config("telemetry:\n  trace_sample: 0.5\n  trace_parent: ignore\n") == [
        "c.yaml:2: telemetry.trace_sample: has no effect without telemetry.otlp",
        "c.yaml:3: telemetry.trace_parent: has no effect without telemetry.otlp",
    ]
    assert of_config('telemetry: {otlp: "http://c:4318", trace_sample: 0.5, trace_parent: ignore}\n') == []


@pytest.mark.parametrize("url", ["http://c:4317", "https://c:4317/v1/traces"])
def test_a_port_that_speaks_grpc_is_named(url):
    assert of_config(f'telemetry:\n  otlp: "{url}"\n') == [
        "c.yaml:2: telemetry.otlp: 4317 is for OTLP over gRPC; spans go over HTTP, mostly at 4318"
    ]
    assert of_config('telemetry: {otlp: "http://c:14317/x:4317"}\n') == []


def test_a_replica_whose_certificate_is_not_checked_is_named():
    assert of_config("replicas:\n  - {verify: true}\n  - {name: b,\n     verify: false}\n") == [
        "c.yaml:4: replicas[1].verify: its certificate is not checked: whoever can answer in its place reads "
        "every prompt sent to it, and its API key",
    ]
