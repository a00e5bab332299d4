"""The policy's part of the price. Apart from `price`, which is compiled: pydantic looks into this."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The policy's part of the price."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    move_s: float = 0.05
    """For leaving home."""
    crowd: float = 1.0
    """Share of what other turns lose to this one's prefill that counts as if it were its own, from 0 up."""
    displacement: float = 1.0
    """Share of what must be forgotten and is still wanted that counts, from 0 up."""
    pull: bool = True
    """Whether KV is pulled from other replicas at all."""
    pull_least_tokens: int = 512
    pull_deadline_s: float = 2.0
    """What a pull may take in any case; one that saves more computing may take as long as it saves, once some
    path has shown what it carries."""
