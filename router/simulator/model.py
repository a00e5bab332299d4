"""A vLLM engine in virtual time: queue, continuous batching, KV blocks. No clock, no I/O, no tokens' text.

Whoever drives it says what time it is: a server in real time, or a replay that jumps from one
`next_event_time` to the next. The same calls give the same events.

A step takes up to `batch_tokens`: first the running sequences in order of admission, one token for each
that decodes and a chunk for each that is still prefilling, then new ones, first come, first served, while
there are sequences, blocks and tokens to spare. It lasts as long as its prompt tokens take, plus one decode
interval if anything decodes. Where blocks run out, the sequence admitted last gives
its up and computes again later.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from router.simulator.cache import BlockCache, Lease
from router.simulator.cost import Pace, StepCost
from router.simulator.settings import ReplicaSettings


class Job(NamedTuple):
    """A request as the engine sees it."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """How many tokens it will generate: at least one."""
    hashes: Sequence[int]
    """Chained hashes of the full blocks of prompt and reply. Blocks beyond the last are never cached."""
    pulled: int = 0
    """How many leading blocks are on their way here from elsewhere, as far as they are not here: `arrived`
    tells how many came. 0 = none."""
    session: str | None = None
    """Whose request it is, as KV events name it."""
    keep: bool = False
    """Its blocks stay held when it has finished, until `let_go`."""


class FirstToken(NamedTuple):
    """The prompt is computed and the first token is out."""

    id: str
    at: float
    cached_tokens: int
    """Prompt tokens that were not computed when the request was first admitted."""
    ttft_s: float


class Tokens(NamedTuple):
    """Further tokens, the last of them at `at`."""

    id: str
    at: float
    tokens: int


class Finished(NamedTuple):
    """All tokens are out and the blocks are given back."""

    id: str
    at: float


class Preempted(NamedTuple):
    """The blocks were taken away; what was generated stays and is computed again."""

    id: str
    at: float


Event = FirstToken | Tokens | Finished | Preempted

PrefillCost = Callable[[int, int], float]
"""Seconds to compute that many prompt tokens (second) behind that many others (first)."""


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    queries: int = 0
    """Prompt tokens looked up in the device's cache."""
    hits: int = 0
    host_queries: int = 0
    host_hits: int = 0
    prompt_tokens: int = 0
    """Of requests whose prefill is done, as the three below."""
    computed_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    aborted: int = 0


class Stats(NamedTuple):
    """The engine at one instant."""

    running: int
    waiting: int
    """For sequences or blocks to be free; `loading` not included."""
    loading: int
    """For their blocks to arrive from the host."""
    kv_usage: float
    """Share of the device's blocks that requests hold, 0 … 1."""
    host_blocks: int


class _Seq:
    """A request on its way."""

    __slots__ = (
        "arrived",
        "cached",
        "computed",
        "device",
        "generated",
        "id",
        "job",
        "lease",
        "prefill",
        "pulled",
        "pulling",
        "ready",
        "total",
    )

    def __init__(self, job: Job, arrived: float) -> None:
        self.id = job.id
        self.job = job
        self.arrived = arrived
        self.total = job.prompt_tokens
        """Tokens known: prompt and generated."""
        self.computed = 0
        """Tokens whose KV lies on the device, or will when the step ends."""
        self.prefill = job.prompt_tokens
        """Up to here tokens are computed at the prefill rate."""
        self.generated = 0
        self.lease: Lease | None = None
        self.cached: int | None = None
        """Tokens hit at the first admission; `None` before it."""
        self.device = 0
        """How many of `cached` lay on the device."""
        self.ready = 0.0
        """When the last block from the host arrives."""
        self.pulled = job.pulled
        """Leading blocks that have come from elsewhere, or will."""
        self.pulling = job.pulled > 0
        """They are still on their way."""


class EngineModel:
    """One engine. All times are seconds on the driver's clock and never go back."""

    def __init__(
        self,
        settings: ReplicaSettings,
        *,
        prefill_cost: PrefillCost | None = None,
        token_events: bool = True,
    ) -> None:
        """`prefill_cost` replaces the rate of the settings. Without `token_events` there are no
        `Tokens`: a replay needs only the first and the last."""
        self._settings = settings
        self._block = settings.block_size
        self._cost = StepCost(settings)
        self._prefill_s = prefill_cost or self._cost.prefill_s
        self._token_events = token_events
        self.cache = BlockCache(settings.usable_blocks, settings.host_kv_blocks)
        self.counters = Counters()
        self._seqs: dict[str, _Seq] = {}
        self._kept: dict[str, Lease] = {}
        """Blocks of requests that have finished and whose blocks were to be kept."""
        self._running: list[_Seq] = []
        self._waiting: deque[_Seq] = deque()
        self._loading: list[tuple[float, int, _Seq]] = []
        """A heap by arrival of the last block; the number breaks ties in order of admission."""
        self._pulling: dict[str, _Seq] = {}
        """Those that hold their blocks and wait for what is pulled."""
        self._loads = 0
        self._link_free = 0.0
        """When the path from host to device is next idle: one transfer at a time."""
        self._now = 0.0
        """The end of the last step, or the last time told while idle."""
        self._batch: list[tuple[_Seq, int]] = []
        """The step in progress: sequences and their tokens."""
        self._stepping = False
        self._step_end = 0.0
        # While the same sequences decode and nothing else, steps end at `_anchor + _pace.after_s(n)`: adding
        # up step by step would make times depend on how often the driver looks.
        self._anchor = 0.0
        self._pace = Pace(0.0, 0.0)
        self._paced = 0
        """Steps begun since then; 0 = the next one sets the anchor."""
        self._pure = False
        """The last step only decoded."""
        self._blocked = False
        """The head of the queue was tried and does not fit, nothing was given back since, and none that
        runs computes what it needs. As long as steps only decode, trying again is in vain."""
        self._events: list[Event] = []

    @property
    def in_flight(self) -> int:
        """Requests submitted and neither finished nor aborted."""
        return len(self._seqs)

    def submit(self, job: Job, now: float) -> None:
        """Put a request at the end of the queue.

        Raises `ValueError` for a request that could never run or whose id is in flight.
        """
        if job.id in self._seqs:
            raise ValueError(f"request {job.id!r} is in flight already")
        if job.prompt_tokens < 1 or job.output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one token to generate")
        if job.prompt_tokens + job.output_tokens > self._settings.context_tokens:
            raise ValueError(
                f"{job.prompt_tokens} + {job.output_tokens} tokens exceed the context of "
                f"{self._settings.context_tokens}"
            )
        self._run(now, start=False)
        seq = _Seq(job, now)
        self._seqs[job.id] = seq
        if not self._waiting:
            self._blocked = False
        self._waiting.append(seq)

    def abort(self, job_id: str, now: float) -> bool:
        """Drop a request wherever it is, and its blocks. False where it is not in flight."""
        self._run(now, start=False)
        seq = self._seqs.pop(job_id, None)
        if seq is None:
            return False
        if seq in self._running:
            self._running.remove(seq)
            # The step in progress goes on: it lasts as long as it was going to.
            self._batch = [(member, tokens) for member, tokens in self._batch if member is not seq]
            self._paced = 0
        elif seq in self._waiting:
            self._waiting.remove(seq)
        elif seq.id in self._pulling:
            del self._pulling[seq.id]
        else:
            self._loading = [entry for entry in self._loading if entry[2] is not seq]
            heapq.heapify(self._loading)
        self._give_back(seq)
        self._blocked = False
        self.counters.aborted += 1
        return True

    def arrived(self, job_id: str, missing: int, now: float) -> None:
        """A pull has ended: all of its blocks but the last `missing` lie in host memory now, and go to the
        device when the request has its blocks there. Nothing happens where it is not under way."""
        self._run(now, start=False)
        seq = self._seqs.get(job_id)
        if seq is None or not seq.pulling:
            return
        seq.pulling = False
        seq.pulled = max(0, seq.pulled - missing)
        if self._pulling.pop(job_id, None) is None:
            return
        lease = _lease(seq)
        landed = max(0, seq.pulled - lease.hashed)
        self._land(seq, landed)
        self._loads += 1
        heapq.heappush(self._loading, (seq.ready, self._loads, seq))

    def let_go(self, job_id: str, now: float) -> bool:
        """Give back the blocks that were kept of a request that has finished. False where there are none."""
        self._run(now, start=False)
        lease = self._kept.pop(job_id, None)
        if lease is None:
            return False
        self.cache.release(lease)
        self._blocked = False
        return True

    def next_event_time(self) -> float | None:
        """When `advance` next has something to do; `None` = nothing until a request comes."""
        if self._stepping:
            return self._step_end
        if self._running or (self._waiting and not self._blocked):
            return self._now
        return self._loading[0][0] if self._loading else None

    def next_outcome_time(self) -> float | None:
        """The earliest that a `FirstToken` or `Finished` can come; `None` = not until a request comes.

        For a driver that needs no more: while all that run decode and nobody can join them, it passes over
        the steps between, which `advance` then leaps.
        """
        if not self._stepping or not self._paced or self._loading or (self._waiting and not self._blocked):
            return self.next_event_time()
        steps = min([seq.job.output_tokens - seq.generated for seq, _ in self._batch], default=1)
        if len(self._batch) * (steps // self._block + 1) > self.cache.free:
            # One of them may have to give up its blocks on the way, and what waits may then get them.
            return self.next_event_time()
        return self._anchor + self._pace.after_s(self._paced + steps - 1)

    @property
    def has_news(self) -> bool:
        """Whether anything has happened that `advance` has not told: other calls let time pass as well."""
        return bool(self._events)

    def advance(self, now: float) -> list[Event]:
        """Let time pass until `now`. Returns what happened since the last call, in order."""
        self._run(now, start=True)
        events, self._events = self._events, []
        return events

    def stats(self, now: float) -> Stats:
        self._run(now, start=False)
        cache = self.cache
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            loading=len(self._loading) + len(self._pulling),
            kv_usage=cache.used / cache.total,
            host_blocks=cache.host_used,
        )

    # Time

    def _run(self, now: float, *, start: bool) -> None:
        """Finish every step that ends by `now`. A step is begun at `now` itself only if `start`, so that
        requests that come at one instant share one."""
        while True:
            if self._stepping:
                if self._step_end > now:
                    return
                self._finish_step()
            if self._now >= now and not start:
                return
            if self._loading and self._loading[0][0] <= self._now:
                self._arrive()
            if self._start_step(now):
                continue
            if self._loading and self._loading[0][0] <= now:
                self._now = max(self._now, self._loading[0][0])
                continue
            self._now = max(self._now, now)
            return

    def _arrive(self) -> None:
        """Requests whose blocks have arrived go to the front of the queue, in order of admission."""
        arrived: list[tuple[int, _Seq]] = []
        while self._loading and self._loading[0][0] <= self._now:
            _, number, seq = heapq.heappop(self._loading)
            arrived.append((number, seq))
        for _, seq in sorted(arrived, key=lambda entry: entry[0], reverse=True):
            self._waiting.appendleft(seq)
        self._blocked = False

    def _start_step(self, now: float) -> bool:
        """Begin a step at `_now`, or leap over several. False where there is nothing to compute; True
        without a step where to try again is not in vain."""
        if not self._running and not self._waiting:
            return False
        if self._pure and self._leap(now):
            return True
        batch: list[tuple[_Seq, int]] = []
        budget = self._schedule_running(batch, self._settings.batch_tokens)
        if budget is not None:
            self._admit(batch, budget)
        if not batch:
            # Where the last that ran gave its blocks up there is something to start, and at once.
            return budget is None
        seconds = 0.0
        decodes = context = 0
        for seq, tokens in batch:
            if seq.computed < seq.prefill:
                seconds += self._prefill_s(seq.computed, tokens)
            else:
                decodes += 1
                context += seq.computed
            seq.computed += tokens
        self._pure = decodes == len(batch)
        if self._pure:
            if self._paced == 0:
                self._anchor = self._now
                self._pace = self._cost.pace(decodes, context)
            self._paced += 1
            self._step_end = self._anchor + self._pace.after_s(self._paced)
        else:
            self._paced = 0
            rest = self._cost.pace(decodes, context).step_s if decodes else self._cost.step_s
            self._step_end = self._now + seconds + rest
        self._batch = batch
        self._stepping = True
        return True

    def _leap(self, now: float) -> bool:
        """Where all that run decode and nobody can join them, do the steps that end by `now` at once, up
        to the last but one of whoever finishes first. False, and nothing done, where that is not so or
        free blocks do not reach."""
        running = self._running
        if not self._paced or not running or self._loading or (self._waiting and not self._blocked):
            return False
        steps = min(seq.job.output_tokens - seq.generated for seq in running) - 1
        # One fewer than fit: the last is then taken by itself.
        steps = min(steps, self._pace.steps_within(now - self._anchor) - self._paced - 1)
        if steps < 2:
            return False
        block = self._block
        # Of several that write the same, whoever fills a block first has its own kept.
        filling = [
            seq.job.hashes[at] for seq in running if (at := seq.computed // block) < len(seq.job.hashes)
        ]
        if len(set(filling)) < len(filling):
            return False
        wanted = [
            (seq, -(-(seq.computed + steps) // block), (seq.computed + steps) // block) for seq in running
        ]
        if sum(max(0, blocks - _lease(seq).blocks) for seq, blocks, _ in wanted) > self.cache.free:
            return False
        for seq, blocks, full in wanted:
            self.cache.grow(_lease(seq), blocks, full)
            seq.computed += steps
            seq.total += steps
            seq.generated += steps
        self._paced += steps
        self._now = self._anchor + self._pace.after_s(self._paced)
        self.counters.generated_tokens += steps * len(running)
        if self._token_events:
            self._events.extend([Tokens(seq.id, self._now, steps) for seq in running])
        return True

    def _finish_step(self) -> None:
        self._now = now = self._step_end
        self._stepping = False
        done = False
        counters = self.counters
        for seq, _ in self._batch:
            if seq.computed < seq.total:
                continue  # a chunk of a longer prompt
            seq.total += 1
            seq.generated += 1
            counters.generated_tokens += 1
            if seq.generated == 1:
                self._count_prompt(seq)
                self._events.append(FirstToken(seq.id, now, seq.cached or 0, now - seq.arrived))
            elif self._token_events:
                self._events.append(Tokens(seq.id, now, 1))
            if seq.generated == seq.job.output_tokens:
                done = True
                self._events.append(Finished(seq.id, now))
                if seq.job.keep and seq.lease is not None:
                    self._kept[seq.id] = seq.lease
                    seq.lease = None
                else:
                    self._give_back(seq)
                del self._seqs[seq.id]
                counters.finished += 1
        if done:
            self._paced = 0
            self._running = [seq for seq in self._running if seq.generated < seq.job.output_tokens]
        self._batch = []

    # Scheduling

    def _schedule_running(self, batch: list[tuple[_Seq, int]], budget: int) -> int | None:
        """Give running sequences their tokens. Returns what is left of the budget, `None` where a
        sequence lost its blocks: then nobody new is admitted in this step."""
        block = self._block
        preempted = False
        at = 0
        while at < len(self._running) and budget > 0:
            seq = self._running[at]
            tokens = min(seq.total - seq.computed, budget)
            end = seq.computed + tokens
            # Most tokens of a decode neither open a block nor fill one.
            if tokens > 1 or seq.computed % block == 0 or end % block == 0:
                while not self.cache.grow(_lease(seq), -(-end // block), end // block):
                    victim = self._running.pop()
                    self._preempt(victim)
                    preempted = True
                    if victim is seq:
                        return None
            batch.append((seq, tokens))
            budget -= tokens
            at += 1
        return None if preempted else budget

    def _admit(self, batch: list[tuple[_Seq, int]], budget: int) -> None:
        """Start waiting requests, first come, first served: one that does not fit holds up all behind."""
        if self._blocked and self._pure:
            return
        self._blocked = False
        while self._waiting and budget > 0 and len(self._running) < self._settings.max_num_seqs:
            seq = self._waiting[0]
            if not self._fits(seq, budget):
                if self._running or not self._reclaim():
                    self._blocked = not self._is_helped(seq)
                    return
                continue
            self._waiting.popleft()
            if seq.pulling:
                self._pulling[seq.id] = seq
                continue
            if seq.ready > self._now:
                self._loads += 1
                heapq.heappush(self._loading, (seq.ready, self._loads, seq))
                continue
            tokens = min(seq.total - seq.computed, budget)
            self._running.append(seq)
            batch.append((seq, tokens))
            budget -= tokens
        self._blocked = budget > 0 and bool(self._waiting)

    def _is_helped(self, seq: _Seq) -> bool:
        """Whether one that runs will come to have the next block that a waiting prompt lacks: then less and
        less of it needs blocks of its own."""
        if seq.lease is not None:
            return False
        hashes = seq.job.hashes
        limit = min((seq.total - 1) // self._block, len(hashes))
        at = self.cache.match(hashes, limit).device
        if at >= limit:
            return False
        return any(at < len(one.job.hashes) and one.job.hashes[at] == hashes[at] for one in self._running)

    def _fits(self, seq: _Seq, budget: int) -> bool:
        """Take the blocks of a request's first step, or those that come from the host. False where there
        are not enough."""
        if seq.lease is None:
            if not self._place(seq):
                return False
            if seq.pulling or seq.ready > self._now:
                return True
        end = seq.computed + min(seq.total - seq.computed, budget)
        return self.cache.grow(_lease(seq), -(-end // self._block), end // self._block)

    def _place(self, seq: _Seq) -> bool:
        """Look the prompt up and hold what is cached, if blocks for all of it are free. Sets `ready` to
        when blocks from the host will have arrived."""
        # The last token is always computed: without it there is nothing to sample from.
        limit = (seq.total - 1) // self._block
        match = self.cache.match(seq.job.hashes, limit)
        if -(-seq.total // self._block) - match.device + match.idle > self.cache.free:
            return False
        seq.lease = self.cache.acquire(seq.job.hashes, limit, seq.job.session)
        seq.ready = self._now
        if match.host:
            self.cache.reload(seq.lease, match.host)
            self._link_free = max(self._now, self._link_free) + match.host * self._settings.host_block_s
            seq.ready = self._link_free
        seq.computed = (match.device + match.host) * self._block
        seq.prefill = seq.total
        pulled = max(0, min(seq.pulled, limit) - match.device - match.host)
        if pulled:
            # There is room: it was asked for above.
            self.cache.grow(seq.lease, match.device + match.host + pulled, 0)
            if not seq.pulling:
                self._land(seq, pulled)
        else:
            seq.pulling = False
        if seq.cached is None:
            seq.cached = seq.computed
            seq.device = match.device * self._block
            counters = self.counters
            counters.queries += seq.total
            counters.hits += seq.device
            if self.cache.host_total:
                counters.host_queries += seq.total - seq.device
                counters.host_hits += seq.computed - seq.device
        return True

    def _land(self, seq: _Seq, blocks: int) -> None:
        """Bring so many blocks that were pulled from host memory to the device, behind what it has there."""
        lease = _lease(seq)
        full = lease.hashed + blocks
        self.cache.grow(lease, lease.blocks, full)
        self._link_free = max(self._now, self._link_free) + blocks * self._settings.host_block_s
        seq.ready = self._link_free if blocks else self._now
        seq.computed = lease.hashed * self._block
        if seq.cached is not None:
            seq.cached = max(seq.cached, seq.computed)

    def _reclaim(self) -> bool:
        """With nothing running, take the blocks of the last waiting request that holds any.

        A request whose blocks came from the host waits with them held. Were several to wait so, each
        short of the rest of its prompt, none could ever start.
        """
        for seq in reversed(self._waiting):
            if seq.lease is not None and seq is not self._waiting[0]:
                self._give_back(seq)
                seq.computed = 0
                return True
        return False

    def _preempt(self, seq: _Seq) -> None:
        self._paced = 0
        self._give_back(seq)
        seq.computed = 0
        seq.pulled = 0
        self._waiting.appendleft(seq)
        self.counters.preemptions += 1
        self._events.append(Preempted(seq.id, self._now))

    def _give_back(self, seq: _Seq) -> None:
        if seq.lease is not None:
            self.cache.release(seq.lease)
            seq.lease = None
            self._blocked = False

    def _count_prompt(self, seq: _Seq) -> None:
        counters = self.counters
        cached = seq.cached or 0
        counters.prompt_tokens += seq.job.prompt_tokens
        counters.device_tokens += seq.device
        counters.host_tokens += cached - seq.device
        counters.computed_tokens += seq.job.prompt_tokens - cached


def _lease(seq: _Seq) -> Lease:
    """The blocks of a sequence that runs, which it always has."""
    if seq.lease is None:
        raise RuntimeError(f"sequence {seq.id!r} runs without blocks")
    return seq.lease
