"""Which policy decides for a request: the first route that matches. Knows policies by index only."""

from collections.abc import Sequence
from typing import NamedTuple

from router.base.ids import TenantId


class Rule(NamedTuple):
    """One route. `None` matches anything; a `*` at the end of a value matches any rest."""

    path: str | None
    model: str | None
    tenant: str | None
    plan: int


class RouteTable:
    """Rules in the order of the config. Requests that none matches take plan 0, the default."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)

    def match(self, path: str, model: str, tenant: TenantId) -> int:
        """Index of the plan. `path` without its query; `model` is "" where the request names none."""
        for rule in self._rules:
            if (
                (rule.path is None or _fits(rule.path, path))
                and (rule.model is None or _fits(rule.model, model))
                and (rule.tenant is None or _fits(rule.tenant, tenant))
            ):
                return rule.plan
        return 0


def _fits(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
