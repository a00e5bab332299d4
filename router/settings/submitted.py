"""Policies that came as text, over the admin API for one, put over a config that is in force.

Nothing here loads code: a policy may name only what is built in or was loaded at the start.
"""

from collections.abc import Container
from dataclasses import replace
from pathlib import Path
from typing import Final

from router.base.errors import SettingsError
from router.settings.config import RouterConfig
from router.settings.document import Fault, parse_documents
from router.settings.load import Loaded, lines_of, read_policy

_SHOWN: Final = "body"


def submit_policies(text: bytes, base: Loaded[RouterConfig], code: Container[str]) -> Loaded[RouterConfig]:
    """`base` with the policies of `text`: one YAML document each, the first is the default.

    Those of `base` that routes name and that are not among them stay behind them; the others go. Raises
    `SettingsError` with every fault, its line that of the text.
    """
    readings = [read_policy(document, Path(), code) for document in parse_documents(text, _SHOWN)]
    faults = [fault for reading in readings for fault in reading.faults]
    seen: dict[str, int] = {}
    for reading in readings:
        if reading.value is None:
            continue
        name, line = reading.value.policy, reading.document.line_of(("policy",))
        if name in seen:
            faults.append(Fault(_SHOWN, line, f"policy: '{name}' is already on line {seen[name]}"))
        seen.setdefault(name, line)
    if faults:
        raise SettingsError(lines_of(faults))
    routed = {route.policy for route in base.value.routes} - seen.keys()
    kept = tuple(policy for policy in base.policies if policy.value.policy in routed)
    return replace(base, policies=(*(reading.loaded() for reading in readings), *kept))
