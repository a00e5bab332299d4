"""What two settings differ in, in words for a log, and what of that a running router cannot take up.

Secrets are compared and never shown.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from router.settings.config import RouterConfig
from router.settings.credentials import Secrets
from router.settings.document import Fault
from router.settings.load import Loaded

# What a router is: whoever changes one of these starts another.
_FIXED: Final = ("listen", "tls", "admin", "telemetry", "restart")

_SHOWN_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a router is built from: a config with its policies, and what is secret."""

    loaded: Loaded[RouterConfig]
    secrets: Secrets
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Where files that are read later find what they name by variable."""


def differences(before: Settings, after: Settings) -> tuple[str, ...]:
    """One line for each value that is another one, `limits.body: 64MiB → 32MiB`. Empty where none is."""
    old, new = _values(before), _values(after)
    return tuple(
        [
            f"{key}: {_shown(old.get(key))} → {_shown(new.get(key))}"
            for key in (*old, *(key for key in new if key not in old))
            if old.get(key) != new.get(key)
        ]
        + [f"{what}: changed" for what, was, now in _secrets(before.secrets, after.secrets) if was != now]
    )


def refused_changes(before: Settings, after: Settings) -> tuple[Fault, ...]:
    """Changes that need a restart, each a fault with its line."""
    document = after.loaded.document
    old, new = before.loaded.value, after.loaded.value
    faults = [
        document.fault((key,), f"{key}: cannot change while the router runs; restart it")
        for key in _FIXED
        if getattr(old, key) != getattr(new, key)
    ]
    if (before.loaded.shadow is None) is not (after.loaded.shadow is None):
        # Whoever begins in mid-course knows of no session.
        what = "shadow: one can be replaced while the router runs, not begun or ended; restart it"
        faults.append(document.fault(("shadow",), what))
    if before.secrets.secret != after.secrets.secret:
        what = (
            "access.secret_file: the secret cannot change while sessions are known by it; restart the router"
        )
        faults.append(document.fault(("access", "secret_file"), what))
    if before.secrets.admin_token != after.secrets.admin_token:
        what = "admin.token_file: the token cannot change while the router runs; restart it"
        faults.append(document.fault(("admin", "token_file"), what))
    return tuple(faults)


def _secrets(old: Secrets, new: Secrets) -> Iterator[tuple[str, object, object]]:
    yield "access.keys_file", old.keys, new.keys
    yield "the replicas' API keys", old.replica_keys, new.replica_keys
    yield "the replicas' certificate authorities", old.replica_tls, new.replica_tls
    yield "what replicas that are found are spoken to with", old.found, new.found
    yield "telemetry.otlp_headers_file", old.otlp_headers, new.otlp_headers


def _values(settings: Settings) -> dict[str, object]:
    """Every value by its place. Lists of things with a name are told apart by it, not by their order."""
    found: dict[str, object] = {}
    loaded = settings.loaded
    _unfold("", _plain(loaded.value), found)
    found["policies"] = ", ".join(policy.value.policy for policy in loaded.policies)
    for policy in loaded.policies:
        _unfold(f"policy {policy.value.policy}", _plain(policy.value), found)
    if loaded.shadow is not None:
        _unfold(f"shadow {loaded.shadow.value.policy}", _plain(loaded.shadow.value), found)
    return found


def _plain(model: BaseModel) -> dict[str, object]:
    return model.model_dump(mode="json", exclude={"policies"} if isinstance(model, RouterConfig) else None)


def _unfold(place: str, value: object, found: dict[str, object]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _unfold(f"{place}.{key}" if place else str(key), inner, found)
    elif isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value):
        for item in value:
            _unfold(f"{place}[{item['name']}]", {**item, "name": item["name"]}, found)
    else:
        found[place] = value


def _shown(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
