"""What a shadow policy would have done, as metrics and as plain fields for JSON."""

from typing import Final

from opentelemetry.sdk.metrics.export import Metric

from router.core.shadow import Disagreement, Shadow, Side
from router.telemetry.points import Builder

_MS: Final = 1000.0

_NOT_KNOWN: Final = (
    "KV events: what lies in its caches is bookkeeping, for the events tell of the live course",
    "pulls: what is not cached where its turns go is computed there",
    "KV usage under its own course",
    "the order in which its queue would have served",
)
"""What a shadow decides without, for whoever reads its figures."""


def shadow_metrics(shadow: Shadow, build: Builder) -> list[Metric]:
    """Agreement, and what either policy was expected to bring. Labels are bounded: two courses, and kinds."""
    tally, policy = shadow.tally, shadow.policy
    return [
        build.counter(
            "homing_shadow_decisions",
            "Turns that both policies decided on, by the kind of either decision.",
            "{turn}",
            [
                ({"policy": policy, "live": live.value, "shadow": own.value}, count)
                for (live, own), count in tally.kinds.items()
            ],
        ),
        build.counter(
            "homing_shadow_disagreements",
            "Those that the shadow would have sent to another replica.",
            "{turn}",
            [({"policy": policy}, tally.disagreed)],
        ),
        build.counter(
            "homing_shadow_cached_tokens",
            "Prompt tokens of those turns that were expected to be cached, by course.",
            "{token}",
            _courses(policy, tally.live_cached_tokens, tally.shadow_cached_tokens),
        ),
        build.counter(
            "homing_shadow_expected_seconds",
            "Expected times to the first token of those turns, added up, by course.",
            "s",
            _courses(policy, tally.live_s, tally.shadow_s),
        ),
        build.counter(
            "homing_shadow_moves",
            "Sessions that changed their home, by course.",
            "{move}",
            _courses(policy, tally.live_moves, tally.shadow_moves),
        ),
        build.counter(
            "homing_shadow_refused",
            "Turns that one policy refused, by course.",
            "{turn}",
            _courses(policy, tally.live_refused, tally.shadow_refused),
        ),
    ]


def _courses(policy: str, live: float, shadow: float) -> list[tuple[dict[str, str], float]]:
    return [({"policy": policy, "course": "live"}, live), ({"policy": policy, "course": "shadow"}, shadow)]


def shadow_fields(shadow: Shadow, limit: int) -> dict[str, object]:
    """The comparison so far, and at most `limit` disagreements, the newest first. Gains are the shadow's over
    the live policy: above 0 it would have done better, if its estimate is right."""
    tally = shadow.tally
    turns = tally.turns
    return {
        "policy": shadow.policy,
        "turns": turns,
        "disagreed": tally.disagreed,
        "cached_tokens": {
            "live": tally.live_cached_tokens,
            "shadow": tally.shadow_cached_tokens,
            "gain": tally.shadow_cached_tokens - tally.live_cached_tokens,
            "of": tally.prompt_tokens,
        },
        "mean_expected_ttft_ms": {
            "live": _mean_ms(tally.live_s, turns),
            "shadow": _mean_ms(tally.shadow_s, turns),
            "gain": _mean_ms(tally.live_s - tally.shadow_s, turns),
        },
        "moves": {"live": tally.live_moves, "shadow": tally.shadow_moves},
        "refused": {"live": tally.live_refused, "shadow": tally.shadow_refused},
        "pinned": tally.pinned,
        "not_known": list(_NOT_KNOWN),
        "kinds": [
            {"live": live.value, "shadow": own.value, "turns": count}
            for (live, own), count in sorted(tally.kinds.items())
        ],
        "disagreements": [_fields(each) for each in list(reversed(shadow.recent))[:limit]],
    }


def _fields(each: Disagreement) -> dict[str, object]:
    live, shadow = each.live, each.shadow
    return {
        "session": each.session,
        "prompt_tokens": each.prompt_tokens,
        "live": _side(live),
        "shadow": _side(shadow),
        "gain_ms": round((live.expected_s - shadow.expected_s) * _MS, 3),
        "gain_tokens": shadow.cached_tokens - live.cached_tokens,
    }


def _side(side: Side) -> dict[str, object]:
    fields: dict[str, object] = side._asdict()
    fields["expected_ttft_ms"] = round(side.expected_s * _MS, 3)
    del fields["expected_s"]
    return fields


def _mean_ms(seconds: float, turns: int) -> float | None:
    return round(seconds / turns * _MS, 3) if turns else None
