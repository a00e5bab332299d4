"""What a turn would take on a replica, in one unit: the price of each way, and the bill that people read.

A pure function of a `Candidate` and of where else the prompt's KV lies. Times here are seconds; the bill is
in milliseconds. Knows no strategy: who is eligible is decided elsewhere.

`price = wait + fetch + compute + crowd + displacement + move + residue + risk`:

- `wait`: until the replica has prefilled what was sent there before, and until it has a place and KV blocks.
  The two pass side by side, so the longer counts. 0 where nothing is known of its load.
- `fetch`: by how much fetching KV outlasts that wait. From the replica's own host it begins once there are
  blocks and what comes from there for others has come, whichever is later, a pull at once. 0 where all lies
  on the device.
- `compute`: the tokens that lie nowhere, at the length of their context.
- `crowd`: what the other turns there lose by that computing, times a factor: those that decode stand still
  for as long, and so does whoever waits for what they hold. And what other pulls on a pull's path lose by it.
- `displacement`: what the replica must forget for it and is still wanted, at the time that computing takes.
- `move`: for leaving home.
- `residue`: what lies at home, and not where the turn goes, is worth nothing once the session has left, and
  yet is what home forgets last: as much is forgotten there of what living sessions want, where they fill it.
  At the time that computing it takes, and what that costs others there.
- `risk`: a pull may fail; then its deadline has passed and all is computed. The chance of it times the loss.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from router.base.ids import ReplicaId
from router.base.values import Value
from router.core.decide import Candidate, Pulls, Source
from router.core.prices import Prices

_MS: Final = 1000.0

# A pull that is under way for another turn is waited for, instead of sending for all, where it brings so much
# of what is to be had.
_MOST_OF_IT: Final = 0.5

# A pull is not tried unless so many times the blocks that it needs are free or can be had.
_HEADROOM: Final = 1.5


class Line(Value):
    """One way to have a turn on one replica. All times are milliseconds, and `price_ms` is their sum."""

    __match_args__ = (
        "replica",
        "way",
        "source",
        "pulled_tokens",
        "wait_ms",
        "fetch_ms",
        "compute_ms",
        "crowd_ms",
        "displacement_ms",
        "move_ms",
        "residue_ms",
        "risk_ms",
        "price_ms",
    )
    __slots__ = __match_args__

    def __init__(
        self,
        replica: ReplicaId,
        way: Literal["local", "pull", "pair"],
        source: ReplicaId | None,
        pulled_tokens: int,
        wait_ms: float,
        fetch_ms: float,
        compute_ms: float,
        crowd_ms: float,
        displacement_ms: float,
        move_ms: float,
        residue_ms: float,
        risk_ms: float,
        price_ms: float,
    ) -> None:
        self.replica: Final = replica
        self.way: Final = way
        """`local`: with what lies there, on the device or the host. `pair`: with what another one computes
        for it."""
        self.source: Final = source
        """Whom the rest would be pulled from; `None` for `local`."""
        self.pulled_tokens: Final = pulled_tokens
        self.wait_ms: Final = wait_ms
        self.fetch_ms: Final = fetch_ms
        self.compute_ms: Final = compute_ms
        self.crowd_ms: Final = crowd_ms
        self.displacement_ms: Final = displacement_ms
        self.move_ms: Final = move_ms
        self.residue_ms: Final = residue_ms
        self.risk_ms: Final = risk_ms
        self.price_ms: Final = price_ms


class Pull(NamedTuple):
    """A pull that could be tried."""

    source: ReplicaId
    tokens: int
    """Of the prompt, behind what lies at the target."""
    seconds: float
    """What it is expected to take."""
    deadline_s: float
    chance: float
    """That it succeeds."""
    others_s: float = 0.0
    """What the other pulls on its path lose by it."""
    rides: bool = False
    """It waits for what is on its way for another turn, and sends for nothing."""


def local_s(c: Candidate, prompt_tokens: int, prices: Prices, *, move: bool) -> float:
    """The price of `local`, without `residue`. The same sum as `_line`, without its parts: it is asked for
    every candidate."""
    cached = c.cached_tokens
    # The last token is always computed.
    missing = prompt_tokens - cached if cached < prompt_tokens else 1
    curve = c.curve
    work = curve.work_s(missing, prompt_tokens)
    begins = max(c.slot_s, c.link_s) + c.host_tokens * curve.reload_s
    if c.wait_s > begins:
        begins = c.wait_s
    price = begins + curve.base_s + work
    if c.in_flight or c.foreign or c.held:
        price += curve.shared_s + prices.crowd * (_company(c) * work + _kept_from_s(c, prompt_tokens))
    if c.reach_tokens is not None:
        price += prices.displacement * displaced_tokens(c, missing) * curve.token_s
    return price + prices.move_s if move else price


def _company(c: Candidate) -> float:
    """The other turns there, and those that wait in the router to go there."""
    return c.in_flight + (c.foreign or 0.0) + c.held


def _kept_from_s(c: Candidate, prompt_tokens: int) -> float:
    """What those lose that wait for KV there, while the turn has its share of it."""
    if not c.waiting or not c.capacity_tokens:
        return 0.0
    return c.waiting * c.holding_s * min(1.0, prompt_tokens / c.capacity_tokens)


def displaced_tokens(c: Candidate, missing: int) -> float:
    """How many tokens of living sessions a replica is to forget when it computes so many more: of what it
    forgets, the share that living sessions have of what it holds. 0 where it has not told its capacity."""
    if not c.reach_tokens:
        return 0.0
    return missing * min(1.0, c.working_set_tokens / c.reach_tokens)


def residue_token_s(home: Candidate, prices: Prices) -> float:
    """What a token costs that a session leaves behind at home. 0 where home has not told its capacity."""
    if not home.reach_tokens:
        return 0.0
    # What is forgotten is what was used longest ago. While the living fill less than half, that is dead.
    share = min(1.0, max(0.0, 2.0 * home.working_set_tokens / home.reach_tokens - 1.0))
    return prices.displacement * share * home.curve.token_s * (1.0 + prices.crowd * _company(home))


def residue_s(c: Candidate, home: Candidate, token_s: float) -> float:
    """What a session leaves behind at home that goes to the candidate, at so much a token. What lies in both
    places stays worth what it is."""
    return token_s * max(0, home.cached_tokens - c.cached_tokens)


def offer(c: Candidate, prompt_tokens: int, prices: Prices, pulls: Pulls) -> Pull | None:
    """The pull that brings most of what is missing at the candidate, if one may be tried."""
    if c.replica not in pulls.targets:
        return None
    ride = _ride(c, prompt_tokens, prices, pulls)
    if ride is not None:
        # A second pull of the same would halve what the first one gets, and bring nothing more.
        return ride
    best: Source | None = None
    for source in pulls.sources:
        if source.replica != c.replica and (best is None or _better(source, best)):
            best = source
    if best is None:
        return None
    most = min(best.cached_tokens, prompt_tokens - 1)
    tokens = most - c.cached_tokens
    if tokens < prices.pull_least_tokens:
        return None
    if c.free_tokens is not None and _HEADROOM * tokens > c.free_tokens:
        return None
    start_s, byte_s = pulls.links.get((best.replica, c.replica), pulls.seed)
    others = max(best.pulls, pulls.inbound.get(c.replica, 0))
    alone_s = pulls.token_bytes * byte_s
    token_s = alone_s * (1 + others)
    saved = prompt_tokens - c.cached_tokens
    deadline_s = prices.pull_deadline_s
    if pulls.links:
        # Before any path has shown what it carries, no turn is to wait for what a guess says.
        deadline_s = max(deadline_s, c.curve.work_s(saved, prompt_tokens))
    # What does not come in time is computed.
    tokens = min(tokens, int((deadline_s - start_s) / token_s))
    if tokens < max(1, prices.pull_least_tokens):
        return None
    return Pull(
        best.replica,
        tokens,
        start_s + tokens * token_s,
        deadline_s,
        best.chance,
        others * tokens * alone_s,
    )


def _ride(c: Candidate, prompt_tokens: int, prices: Prices, pulls: Pulls) -> Pull | None:
    """What comes to the candidate anyway, if it is worth waiting for and most of what could be had."""
    flight = pulls.flights.get(c.replica)
    if flight is None:
        return None
    most = max([min(source.cached_tokens, prompt_tokens - 1) for source in pulls.sources], default=0)
    tokens = min(flight.cached_tokens, prompt_tokens - 1) - c.cached_tokens
    if tokens < prices.pull_least_tokens or tokens < _MOST_OF_IT * (most - c.cached_tokens):
        return None
    saved_s = c.curve.work_s(prompt_tokens - c.cached_tokens, prompt_tokens)
    deadline_s = max(prices.pull_deadline_s, saved_s)
    return Pull(flight.source, tokens, flight.seconds, deadline_s, flight.chance, rides=True)


def _better(source: Source, than: Source) -> bool:
    """More first; of equal ones whoever serves fewer pulls."""
    return (source.cached_tokens, -source.pulls) > (than.cached_tokens, -than.pulls)


def pull_s(c: Candidate, prompt_tokens: int, prices: Prices, pull: Pull, *, move: bool) -> float:
    """The price of having the turn there with a pull, without `residue`."""
    return _line(c, prompt_tokens, prices, pull, move=move).price_ms / _MS


def lines(
    candidates: Sequence[Candidate],
    prompt_tokens: int,
    home: ReplicaId | None,
    prices: Prices,
    pulls: Pulls | None,
) -> tuple[Line, ...]:
    """The bill: each candidate's ways, with all terms, in the candidates' order."""
    bill: list[Line] = []
    left = next((c for c in candidates if c.replica == home), None)
    token_s = residue_token_s(left, prices) if left is not None else 0.0
    for c in candidates:
        move = home is not None and c.replica != home
        residue = residue_s(c, left, token_s) if left is not None else 0.0
        bill.append(_line(c, prompt_tokens, prices, None, move=move, residue=residue))
        if prices.pull and pulls is not None:
            pull = offer(c, prompt_tokens, prices, pulls)
            if pull is not None:
                bill.append(_line(c, prompt_tokens, prices, pull, move=move, residue=residue))
    return tuple(bill)


def expected_s(c: Candidate, prompt_tokens: int, pull: Pull | None = None) -> float:
    """Dispatch to first token, as far as one can tell: the price without what others lose by it."""
    if pull is None:
        return local_s(c, prompt_tokens, _PLAIN, move=False)
    return pull_s(c, prompt_tokens, _PLAIN, pull, move=False)


_PLAIN: Final = Prices(move_s=0.0, crowd=0.0, displacement=0.0)


def _line(
    c: Candidate,
    prompt_tokens: int,
    prices: Prices,
    pull: Pull | None,
    *,
    move: bool,
    residue: float = 0.0,
) -> Line:
    curve = c.curve
    local = max(1, prompt_tokens - c.cached_tokens)
    missing = local if pull is None else max(1, local - pull.tokens)
    wait = max(c.wait_s, c.slot_s)
    begins = max(c.wait_s, max(c.slot_s, c.link_s) + c.host_tokens * curve.reload_s)
    if pull is not None:
        begins = max(begins, pull.seconds)
    company = _company(c)
    compute = curve.seconds(missing, prompt_tokens, shared=company > 0.0)
    work = curve.work_s(missing, prompt_tokens)
    crowd = company * work + _kept_from_s(c, prompt_tokens)
    if pull is not None:
        crowd += pull.others_s
    crowd *= prices.crowd
    displacement = prices.displacement * displaced_tokens(c, local) * curve.token_s
    leaving = prices.move_s if move else 0.0
    risk = 0.0
    if pull is not None:
        failed = max(wait, pull.deadline_s) + curve.seconds(local, prompt_tokens, shared=company > 0.0)
        risk = (1.0 - pull.chance) * max(0.0, failed - begins - compute)
    fetch = begins - wait
    return Line(
        c.replica,
        "local" if pull is None else "pull",
        None if pull is None else pull.source,
        0 if pull is None else pull.tokens,
        _MS * wait,
        _MS * fetch,
        _MS * compute,
        _MS * crowd,
        _MS * displacement,
        _MS * leaving,
        _MS * residue,
        _MS * risk,
        _MS * (wait + fetch + compute + crowd + displacement + leaving + residue + risk),
    )
