"""What a policy file says: how sessions are told apart, and how a replica is chosen for a turn.

Values only. `build.py` makes the plan that the engine runs.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from router.core.learned import SEED_TOKENS_PER_S
from router.core.plan import Overload as OverloadDefaults
from router.core.plan import PairRules, PullRules, QueueRules, SessionRules
from router.core.plan import Retry as RetryDefaults
from router.core.prices import Prices
from router.settings.fields import (
    BodyField,
    CountOrAuto,
    Duration,
    DurationOrAuto,
    DurationOrZero,
    HeaderName,
    Model,
    Name,
    SignedDuration,
    Size,
)

_SESSION = SessionRules()
_QUEUE = QueueRules()
_OVERLOAD = OverloadDefaults()
_RETRY = RetryDefaults()
_PRICES = Prices()
_PULL_RULES = PullRules()
_PAIR_RULES = PairRules()

Share = Annotated[float, Field(gt=0, le=1)]


class Session(Model):
    """Where a session's id is looked for: headers, then body fields, then the conversation's opening."""

    headers: tuple[HeaderName, ...] = _SESSION.headers
    parents: tuple[HeaderName, ...] = _SESSION.parents
    """Headers that name the session which started this one."""
    body: tuple[BodyField, ...] = _SESSION.body
    derive: bool = _SESSION.derive
    idle: Duration = _SESSION.idle_s
    """A session without a turn for this long is forgotten."""


class Bound(Model):
    """An owner is skipped while its load exceeds both `relative` × mean and mean + `absolute`."""

    relative: Annotated[float, Field(ge=1, le=1000)] = 1.1
    absolute: Annotated[int, Field(ge=0)] = 50_000
    """Tokens of living sessions."""


class Place(Model):
    """Where a session that nobody holds goes."""

    vnodes: Annotated[int, Field(ge=1, le=10_000)] = 160
    """Virtual nodes a replica on the ring."""
    bound: Bound = Bound()


class Prefill(Model):
    """What is assumed of a replica's prefill rate until it is learned."""

    seed_tokens_per_s: Annotated[int, Field(gt=0)] = int(SEED_TOKENS_PER_S)


class Pull(Model):
    """When KV is fetched from another replica instead of computed again. Both need a KV agent."""

    enabled: bool = _PRICES.pull
    min_tokens: Annotated[int, Field(ge=1)] = _PRICES.pull_least_tokens
    stall: Duration = 0.15
    """A pull that gets nothing for so long is given up."""
    deadline: Duration = _PRICES.pull_deadline_s
    """What a pull may take; one that saves more computing may take as long as it saves."""
    per_source: Annotated[int, Field(ge=1)] = _PULL_RULES.per_source
    """Pulls from one replica at a time."""
    seed_gbps: Annotated[float, Field(gt=0)] = _PULL_RULES.seed_gbps
    """Gigabits a second between two replicas, until it is learned."""


class Pair(Model):
    """How prefill and decode replicas work together. Without any, nothing here counts."""

    ttl: Duration = _PAIR_RULES.ttl_s
    """For how long what decode holds of a turn may be fetched: less than its `decoder_kv_blocks_ttl` by ten
    seconds at least."""
    min_tokens: Annotated[int, Field(ge=1)] = _PAIR_RULES.least_tokens
    """A shorter beginning is computed, not fetched."""
    deadline: Duration = _PAIR_RULES.deadline_s
    """What a prefill that fetches may take beyond what computing all would."""
    streams: Literal["one-way", "whole"] = "one-way"
    """Streamed turns on engines whose streams do not say what decode holds: leave nothing to fetch, or are
    answered whole by decode and streamed from here."""
    kv_usage: Share = _PAIR_RULES.kv_usage
    """Above it, a decode replica's oldest offers are let go of."""


class Price(Model):
    """What the options of a turn cost."""

    prefill: Prefill = Prefill()
    pull: Pull = Pull()
    move: DurationOrZero = _PRICES.move_s
    """Added for leaving home."""
    crowd: Annotated[float, Field(ge=0)] = _PRICES.crowd
    """Share of what the other turns there lose by a prefill that counts."""
    displacement: Annotated[float, Field(ge=0)] = _PRICES.displacement
    """Share of what must be forgotten there and is still wanted that counts."""


class Queue(Model):
    """How turns wait: in the replicas, first come first served, or here, least missing work first."""

    order: Literal["engine", "least-missing"] = "engine"
    ageing: Annotated[float, Field(ge=0.001, le=1000)] = _QUEUE.ageing
    """Seconds of work that a second of waiting makes up for."""
    horizon: DurationOrAuto = _QUEUE.horizon_s
    """Prefill that may be on its way to a replica."""
    max: Annotated[int, Field(ge=1)] = _QUEUE.most
    bytes: Size = _QUEUE.most_bytes
    """Of the bodies of turns that wait."""
    wait: Duration = _QUEUE.wait_s
    priorities: dict[Name, SignedDuration] = Field(default_factory=dict)
    """By how much longer than it did a turn of each priority counts as having waited; `-` for less."""
    engine_priorities: bool = _QUEUE.engine_priorities
    """Whether a turn's priority is passed on to its replica."""


class Overload(Model):
    """When a replica is passed over."""

    in_flight: CountOrAuto = _OVERLOAD.in_flight
    kv_usage: Share | None = _OVERLOAD.kv_usage
    """Share of KV blocks in use; `null` = no limit."""


class Retry(Model):
    """What happens when a replica fails before the first byte of its answer."""

    attempts: Annotated[int, Field(ge=0, le=10)] = _RETRY.attempts
    after_death: Annotated[int, Field(ge=0, le=10)] = _RETRY.after_death
    budget: Annotated[float, Field(ge=0, le=1)] = _RETRY.budget
    """Retries across the fleet as a share of requests."""

    @model_validator(mode="after")
    def _death_within_attempts(self) -> Self:
        if "after_death" in self.model_fields_set and self.after_death > self.attempts:
            raise ValueError(f"after_death ({self.after_death}) is more than attempts ({self.attempts})")
        return self


class Policy(Model):
    """A policy file."""

    version: Literal[1]
    policy: Name
    session: Session = Session()
    strategy: str
    """A built-in strategy's name, or `module:Class` for one of your own."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """The strategy's own parameters."""
    place: Place = Place()
    price: Price = Price()
    queue: Queue = Queue()
    overload: Overload = Overload()
    retry: Retry = Retry()
    pair: Pair = Pair()
    reserved: Literal["cut", "refuse"] = "cut"
    """What happens to a body's fields that are the router's to set."""
