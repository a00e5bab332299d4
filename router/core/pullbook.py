"""The books of pulls: what paths between replicas carry, how pulls end, and how many are under way.

The engine's. Knows no transport: it is told when a pull begins and how it ended, and answers with values.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from router.base.ids import ReplicaId
from router.core.decide import Decision, Flight, Pulls, Source
from router.core.estimate.link import Link
from router.core.estimate.pulls import Breaker, PullRecord
from router.core.estimate.scale import Scale
from router.core.holdings import AgentReport
from router.core.plan import PullRules

# Connecting, asking, and the first block.
_SEED_START_S: Final = 0.01

# 80 layers or so of grouped-query attention at 16 bits; from a tiny model's to far beyond any.
_SEED_TOKEN_BYTES: Final = 163_840.0
_LEAST_TOKEN_BYTES: Final = 16.0
_MOST_TOKEN_BYTES: Final = 1e8

_NONE: Final[Mapping[ReplicaId, Flight]] = MappingProxyType({})

_BITS: Final = 8.0
_GIGA: Final = 1e9

# Share of a pull that makes it one which succeeded.
CAME: Final = 0.8


def pull_came(decision: Decision, cached_tokens: int) -> bool:
    """Whether a turn's pull brought what it was sent for, by the cached tokens that its replica reports."""
    assert decision.pull is not None
    came = cached_tokens - (decision.cached_tokens - decision.pull.tokens)
    return came >= CAME * decision.pull.tokens


class Pulled(NamedTuple):
    """How a pull ended, as its target or whoever saw it reports."""

    tokens: int
    """That came, of those that were asked for."""
    size: int
    """In bytes."""
    seconds: float
    complete: bool
    """Whether all came that were asked for."""


class PullBook:
    """All pulls of one fleet. Links are remembered for pairs of replicas in the fleet."""

    def __init__(self, rules: PullRules) -> None:
        self._rules = rules
        self._seed = _seed_of(rules)
        self._names: frozenset[ReplicaId] | None = None
        self._links: dict[tuple[ReplicaId, ReplicaId], Link] = {}
        # Copied when anything is learned, so that whoever has it may keep it.
        self._known: MappingProxyType[tuple[ReplicaId, ReplicaId], tuple[float, float]] = MappingProxyType({})
        self._records: dict[ReplicaId, PullRecord] = {}
        self._outbound: dict[ReplicaId, int] = {}
        self._inbound: MappingProxyType[ReplicaId, int] = MappingProxyType({})
        self._token_bytes = Scale(_SEED_TOKEN_BYTES, least=_LEAST_TOKEN_BYTES, most=_MOST_TOKEN_BYTES)

    def follow(self, rules: PullRules) -> None:
        """Go by other rules from now on. What was learned stays."""
        if not self._known:
            self._seed = _seed_of(rules)
        self._rules = rules

    def keep_only(self, names: Iterable[ReplicaId]) -> None:
        """These are all replicas and pools that there are. What is known of others is forgotten, and what is
        told of them from now on is not kept."""
        there = self._names = frozenset(names)
        for gone in [name for name in self._records if name not in there]:
            del self._records[gone]
        self._forget_links(lambda name: name not in there)

    @property
    def has_learned(self) -> bool:
        """Whether some path has shown what it carries."""
        return bool(self._known)

    def allows(self, source: ReplicaId, now: float) -> bool:
        """Whether one more pull from there may begin: it is within its budget, and its breaker is closed."""
        if self._outbound and not self._known:
            # One at a time until the first has shown what a path carries.
            return False
        if self._outbound.get(source, 0) >= self._rules.per_source or not self._is_there(source):
            return False
        record = self._records.get(source)
        return record is None or record.allows(now)

    def view(
        self,
        held: Iterable[tuple[ReplicaId, int]],
        targets: frozenset[ReplicaId],
        now: float,
        flights: Mapping[ReplicaId, Flight] = _NONE,
    ) -> Pulls | None:
        """What a turn may be told of pulls, of whose prompt `held` have so many tokens and `flights` are on
        their way; `None` where there is nothing to pull."""
        sources = []
        for replica, tokens in held:
            if self.allows(replica, now):
                chance = self._record(replica).chance
                sources.append(Source(replica, tokens, self._outbound.get(replica, 0), chance))
        if not sources and not flights:
            return None
        token_bytes = self._token_bytes.value
        return Pulls(tuple(sources), targets, self._inbound, self._known, self._seed, token_bytes, flights)

    def path(self, source: ReplicaId, target: ReplicaId) -> tuple[float, float]:
        """Seconds to begin and seconds a token from the first to the second, for one transfer alone."""
        start_s, byte_s = self._known.get((source, target), self._seed)
        return start_s, byte_s * self._token_bytes.value

    def begin(self, source: ReplicaId, target: ReplicaId, now: float) -> int:
        """A pull begins. Returns by how many the path is shared, itself included."""
        self._record(source).tried(now)
        self._outbound[source] = self._outbound.get(source, 0) + 1
        self._change_inbound(target, 1)
        return max(self._outbound[source], self._inbound[target])

    def end(
        self, source: ReplicaId, target: ReplicaId, sharing: int, pulled: Pulled | None, now: float
    ) -> None:
        """A pull that shared its path by so many has ended; `None` = nobody told how."""
        self._outbound[source] -= 1
        if not self._outbound[source]:
            del self._outbound[source]
        self._change_inbound(target, -1)
        if pulled is None:
            return
        self._record(source).observe(pulled.complete, now)
        if pulled.size <= 0 or pulled.tokens <= 0:
            return
        self._token_bytes.observe(pulled.size / pulled.tokens)
        # What took part of the path's time would have taken so much more of its bytes.
        self._carried((source, target), pulled.size * sharing, pulled.seconds)

    @property
    def token_bytes(self) -> float:
        """KV bytes of a token, as learned."""
        return self._token_bytes.value

    def _carried(
        self, pair: tuple[ReplicaId, ReplicaId], size: float, seconds: float, *, timed: bool = True
    ) -> None:
        if not (self._is_there(pair[0]) and self._is_there(pair[1])):
            return
        link = self._links.get(pair)
        if link is None:
            link = self._links[pair] = Link(1.0 / self._seed[1], self._seed[0])
        if link.observe(size, seconds, timed=timed):
            self._known = MappingProxyType({**self._known, pair: (link.start_s, link.byte_s)})
            # Paths of a fleet are mostly alike: strangers are taken for the last that was learned of.
            self._seed = (link.start_s, link.byte_s)

    def result(self, source: ReplicaId, complete: bool, now: float) -> None:
        """Whether a pull brought what it was sent for, as its turn's usage shows."""
        self._record(source).observe(complete, now)

    def told(self, target: ReplicaId, report: AgentReport) -> None:
        """What an agent says of its pulls. It has measured whole ones, so their start is part of the rate."""
        if report.token_bytes is not None:
            self._token_bytes.observe(report.token_bytes)
        for source, bytes_per_s in report.bytes_per_s:
            if bytes_per_s > 0.0:
                self._carried((source, target), bytes_per_s, 1.0)

    def measured(self, source: ReplicaId, target: ReplicaId, tokens: int, seconds: float) -> None:
        """So many tokens' KV took so long from the one to the other, as seen from without."""
        self._carried((source, target), tokens * self._token_bytes.value, seconds, timed=False)

    def forget(self, replica: ReplicaId) -> None:
        """It left the fleet, or is another process: what was learned of it is void."""
        self._records.pop(replica, None)
        self._forget_links(lambda name: name == replica)

    def _forget_links(self, is_gone: Callable[[ReplicaId], bool]) -> None:
        gone = [pair for pair in self._links if is_gone(pair[0]) or is_gone(pair[1])]
        if gone:
            for pair in gone:
                del self._links[pair]
            self._known = MappingProxyType(
                {pair: known for pair, known in self._known.items() if pair in self._links}
            )

    def _is_there(self, name: ReplicaId) -> bool:
        return self._names is None or name in self._names

    def breakers(self, now: float) -> dict[ReplicaId, Breaker]:
        """The state of each source that pulls were thought of from."""
        return {replica: record.breaker(now) for replica, record in self._records.items()}

    def _record(self, replica: ReplicaId) -> PullRecord:
        record = self._records.get(replica)
        if record is None:
            record = PullRecord()
            if self._is_there(replica):
                self._records[replica] = record
        return record

    def _change_inbound(self, target: ReplicaId, by: int) -> None:
        inbound = dict(self._inbound)
        inbound[target] = inbound.get(target, 0) + by
        if not inbound[target]:
            del inbound[target]
        self._inbound = MappingProxyType(inbound)


def _seed_of(rules: PullRules) -> tuple[float, float]:
    """What a path is taken for of which nothing is known: seconds to begin, and seconds a byte."""
    return _SEED_START_S, _BITS / (rules.seed_gbps * _GIGA)
