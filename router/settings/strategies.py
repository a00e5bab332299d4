"""From a policy's strategy name to the class and its checked parameters. Imports what the name says.

A `module:Class` runs code, so nothing here may be reached with a policy that came over the network.
"""

import importlib
import json
import re
from collections.abc import Container
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from router.core.decide import BUILT_IN, Strategy
from router.settings.explain import nearest
from router.settings.policy import Policy

PLACES_BY_BOUND: Final = frozenset({"priced"})
"""Strategies that take `place.bound` for their parameters `relative` and `absolute`."""

PRICES: Final = frozenset({"priced"})
"""Strategies that take `price` for their parameter `prices`."""

_OWN: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class StrategyClass:
    """A strategy before it is built."""

    path: str
    """`module:Class`."""
    make: Any
    """The class. Not one base class but a protocol, and its constructor takes its own `Params`."""
    params: type

    def build(self, params: object) -> Strategy:
        strategy: Strategy = self.make(params)
        return strategy


def resolve(name: str, code: Container[str] | None = None) -> StrategyClass:
    """The class that a policy's `strategy` names. Raises `ValueError` for a name that leads to none.

    `code` are the names of the operator's own that may be imported; `None` = any, as at the start.
    """
    path = BUILT_IN.get(name, name)
    if _OWN.fullmatch(path) is None:
        raise ValueError(f"unknown strategy '{name}'{nearest(name, BUILT_IN)} (or module:Class for your own)")
    if code is not None and name not in BUILT_IN and name not in code:
        raise ValueError(f"'{name}' is code that was not loaded at the start; name it in a file and restart")
    module_name, class_name = path.split(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it loads
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"cannot import '{module_name}' from Python's path (PYTHONPATH): {reason}"
        ) from error
    made = getattr(module, class_name, None)
    if not isinstance(made, type) or not callable(getattr(made, "choose", None)):
        raise ValueError(f"'{path}' is not a class with a method 'choose'")
    params = getattr(made, "Params", None)
    if not isinstance(params, type) or not is_dataclass(params):
        raise ValueError(f"'{path}' has no dataclass 'Params' for its parameters")
    if getattr(params, "__pydantic_config__", {}).get("extra") != "forbid":
        raise ValueError(
            f"'{path}' would take misspelt parameters: set __pydantic_config__ extra to 'forbid'"
        )
    return StrategyClass(path, made, params)


def parameters(strategy: StrategyClass, policy: Policy) -> object:
    """The strategy's `Params` as the policy sets them. Raises `pydantic.ValidationError`."""
    given: dict[str, Any] = dict(policy.params)
    if policy.strategy in PLACES_BY_BOUND:
        given |= policy.place.bound.model_dump()
    if policy.strategy in PRICES:
        price = policy.price
        given["prices"] = {
            "move_s": price.move,
            "crowd": price.crowd,
            "displacement": price.displacement,
            "pull": price.pull.enabled,
            "pull_least_tokens": price.pull.min_tokens,
            "pull_deadline_s": price.pull.deadline,
        }
    # Strict mode takes a mapping for a dataclass only from JSON.
    checked: object = TypeAdapter(strategy.params).validate_json(json.dumps(given), strict=True)
    return checked
