"""What a file asks for without effect or at a risk, so that nothing is dropped in silence."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from router.settings.document import Document, Loc
from router.settings.explain import dotted
from router.settings.strategies import PLACES_BY_BOUND, PRICES


class Unused(NamedTuple):
    """A key without effect. Shown only where the file has the key."""

    loc: Loc
    """`*` stands for every item of a list."""
    says: str
    when: Callable[[object], bool] = lambda value: value is not None
    """For which values."""


_NO_COLLECTOR: Final[Sequence[Unused]] = (
    Unused(
        ("telemetry", "trace_sample"),
        "has no effect without telemetry.otlp",
        lambda value: value != 0,
    ),
    Unused(("telemetry", "trace_parent"), "has no effect without telemetry.otlp"),
)

_GRPC: Final = re.compile(r"https?://[^/]*:4317(?:/.*)?")


def config_notices(document: Document) -> list[str]:
    """Notices on a config file that is without fault."""
    otlp = document.at("telemetry", "otlp")
    notices = _of(document, _NO_COLLECTOR) if otlp is None else []
    if isinstance(otlp, str) and _GRPC.fullmatch(otlp):
        what = "telemetry.otlp: 4317 is for OTLP over gRPC; spans go over HTTP, mostly at 4318"
        notices.append(str(document.fault(("telemetry", "otlp"), what)))
    places = [*_places(document, ("replicas", "*", "verify"))]
    places += [("discovery", kind, "verify") for kind in ("dns", "kubernetes")]
    for loc in places:
        if document.at(*loc) is False:
            what = (
                f"{dotted(loc)}: its certificate is not checked: whoever can answer in its place reads every"
                " prompt sent to it, and its API key"
            )
            notices.append(str(document.fault(loc, what)))
    return notices


def policy_notices(document: Document) -> list[str]:
    """Notices on a policy file that is without fault."""
    notices: list[str] = []
    strategy = document.at("strategy")
    if document.at("place", "bound") is not None and strategy not in PLACES_BY_BOUND:
        what = f"place.bound: has no effect with strategy {strategy}; its own are under 'params'"
        notices.append(str(document.fault(("place", "bound"), what)))
    if strategy not in PRICES:
        for key in ("move", "crowd", "displacement"):
            if document.at("price", key) is not None:
                what = f"price.{key}: has no effect with strategy {strategy}, which has no prices"
                notices.append(str(document.fault(("price", key), what)))
    return notices


def _of(document: Document, table: Sequence[Unused]) -> list[str]:
    return [
        str(document.fault(loc, f"{dotted(loc)}: {unused.says}"))
        for unused in table
        for loc in _places(document, unused.loc)
        if loc in document.lines and unused.when(document.at(*loc))
    ]


def _places(document: Document, pattern: Loc) -> Iterator[Loc]:
    if "*" not in pattern:
        yield pattern
        return
    star = pattern.index("*")
    items = document.at(*pattern[:star])
    for index in range(len(items) if isinstance(items, list) else 0):
        yield (*pattern[:star], index, *pattern[star + 1 :])
