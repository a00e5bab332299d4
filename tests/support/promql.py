"""A reader of PromQL, of as much of it as alert rules and dashboards need: what does not read is an error.

Answers what an expression asks for: each selector, with its matchers, what is applied to it, and the labels
that whatever stands around it groups by.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.]))
  | (?P<duration>\d+[smhdw])
  | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
  | (?P<operator>==|!=|=~|!~|>=|<=|[-+*/%^<>=(){}\[\],])
)""",
    re.VERBOSE,
)
AGGREGATES = frozenset({"sum", "min", "max", "avg", "count"})
RANGES = frozenset({"rate", "increase"})
"""Functions of a counter over a time."""
FUNCTIONS = frozenset({"absent", "scalar", "histogram_quantile", *RANGES})
BINARY = ("or", "and", "unless", "==", "!=", "<=", "<", ">=", ">", "+", "-", "*", "/", "%", "^")


class Selected(NamedTuple):
    """One selector of an expression."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""
    over: str | None
    """The function that is applied to a range of it; `None` where there is no range."""
    grouped: frozenset[str]
    """Labels that aggregations around it keep."""
    quantile: bool
    """Whether a quantile is taken of what becomes of it."""


@dataclass
class _Reader:
    tokens: list[tuple[str, str]]
    at: int = 0

    def __post_init__(self) -> None:
        self.found: list[Selected] = []

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        if self.at >= len(self.tokens) or (expected is not None and self.peek() != expected):
            raise ValueError(f"expected {expected or 'more'}, found {self.peek()!r} at token {self.at}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def expression(self, grouped: frozenset[str], over: str | None, quantile: bool) -> None:
        self.operand(grouped, over, quantile)
        while self.peek() in BINARY:
            self.take()
            self.operand(grouped, over, quantile)

    def operand(self, grouped: frozenset[str], over: str | None, quantile: bool) -> None:
        if self.peek() == "-":
            self.take()
        if self.kind() == "number":
            self.take()
        elif self.peek() == "(":
            self.take()
            self.expression(grouped, over, quantile)
            self.take(")")
        elif self.kind() == "name":
            name = self.take()
            if name in AGGREGATES:
                self.aggregate(grouped, quantile)
            elif self.peek() == "(":
                self.call(name, grouped, quantile)
            else:
                self.selector(name, grouped, over, quantile)
        else:
            raise ValueError(f"no operand: {self.peek()!r}")

    def aggregate(self, grouped: frozenset[str], quantile: bool) -> None:
        labels: list[str] = []
        if self.peek() == "by":
            self.take()
            self.take("(")
            while self.peek() != ")":
                if self.kind() != "name":
                    raise ValueError(f"no label: {self.peek()!r}")
                labels.append(self.take())
                if self.peek() != ")":
                    self.take(",")
            self.take(")")
        self.take("(")
        self.expression(grouped | frozenset(labels), None, quantile)
        self.take(")")

    def call(self, name: str, grouped: frozenset[str], quantile: bool) -> None:
        if name not in FUNCTIONS:
            raise ValueError(f"unknown function {name}")
        self.take("(")
        if name == "histogram_quantile":
            if not 0.0 < float(self.take()) < 1.0:
                raise ValueError("a quantile is from 0 to 1")
            self.take(",")
            quantile = True
        self.expression(grouped, name if name in RANGES else None, quantile)
        self.take(")")

    def selector(self, metric: str, grouped: frozenset[str], over: str | None, quantile: bool) -> None:
        matchers: list[tuple[str, str, str]] = []
        if self.peek() == "{":
            self.take()
            while self.peek() != "}":
                label, operator = self.take(), self.take()
                if operator not in ("=", "!=", "=~", "!~") or self.kind() != "string":
                    raise ValueError(f"no matcher: {label}{operator}{self.peek()}")
                matchers.append((label, operator, self.take()[1:-1]))
                if self.peek() != "}":
                    self.take(",")
            self.take("}")
        ranged = self.peek() == "["
        if ranged:
            self.take()
            if self.kind() != "duration":
                raise ValueError(f"no duration: {self.peek()!r}")
            self.take()
            self.take("]")
        if ranged is not (over is not None):
            raise ValueError(f"{metric}: a range is for rate() and increase(), and they are for a range")
        self.found.append(Selected(metric, tuple(matchers), over, grouped, quantile))


def read(expression: str) -> list[Selected]:
    """What an expression asks for. Raises `ValueError` for one that is none."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while expression[at:].strip():
        match = TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"not understood: {expression[at : at + 20]!r}")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    reader = _Reader(tokens)
    reader.expression(frozenset(), None, False)
    if reader.peek():
        raise ValueError(f"more than an expression: {reader.peek()!r}")
    return reader.found
