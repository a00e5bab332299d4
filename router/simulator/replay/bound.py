"""What no placement is expected to beat: all KV shared and never lost, one queue for the whole fleet.

Precisely: every distinct block of the workload, replies included, is computed once, by the first turn that
has it, and lies ready on every replica from that turn's arrival on, at no cost. A turn's work is its other
prompt tokens (at least those of its last block) at the prefill rate. Replicas are that many servers of one
queue, least remaining work first: a turn with less to do takes the place of the running one with most
left, which goes on later without loss. Decoding slows nothing and waits for nothing. Sessions wait for
their answers as in a replay, so they come back sooner here.

On several servers this order is not proven to be the best, so it is a yardstick and not a theorem.
"""

from heapq import heappop, heappush
from itertools import count

from router.simulator.cost import StepCost
from router.simulator.replay.figures import Measured
from router.simulator.replay.workload import Player, Workload, begin
from router.simulator.settings import ReplicaSettings


class _Work:
    """A turn's prefill."""

    __slots__ = ("ends_at", "left_s", "player")

    def __init__(self, player: Player, left_s: float) -> None:
        self.player = player
        self.left_s = left_s
        """When it last stopped."""
        self.ends_at = 0.0
        """While it runs."""


class Bound:
    """The best fleet of so many replicas. Runs once."""

    def __init__(self, workload: Workload, settings: ReplicaSettings, *, replicas: int) -> None:
        self.measured = Measured()
        self._block = workload.block_tokens
        self._cost = StepCost(settings)
        self._replicas = replicas
        self._held: set[int] = set()
        self._computing: dict[_Work, None] = {}
        self._queue: list[tuple[float, int, _Work]] = []
        self._agenda: list[tuple[float, int, Player | _Work]] = []
        self._order = count()
        for at, script in workload.starts:
            for player in begin(script, at):
                self._push(player.began, player)

    def run(self) -> Measured:
        """Play every session to its end."""
        while self._agenda:
            now, _, subject = heappop(self._agenda)
            if isinstance(subject, Player):
                self._arrive(subject, now)
            elif subject in self._computing and subject.ends_at == now:
                self._computed(subject, now)
        return self.measured

    def _push(self, at: float, subject: Player | _Work) -> None:
        heappush(self._agenda, (at, next(self._order), subject))

    def _arrive(self, player: Player, now: float) -> None:
        player.arrive(now)
        for agent in player.started():
            self._push(agent.began, agent)
        step = player.step
        cached = self._leading(player.hashes, (step.prompt_tokens - 1) // self._block) * self._block
        self._held.update(step.fresh, step.reply)
        self.measured.prompt_tokens += step.prompt_tokens
        self.measured.cached_tokens += cached
        fresh = step.prompt_tokens - cached
        work = _Work(player, self._cost.prefill_s(cached, fresh) + self._cost.step_s)
        if len(self._computing) == self._replicas:
            longest = max(self._computing, key=lambda running: running.ends_at)
            if longest.ends_at - now <= work.left_s:
                heappush(self._queue, (work.left_s, next(self._order), work))
                return
            del self._computing[longest]
            longest.left_s = longest.ends_at - now
            heappush(self._queue, (longest.left_s, next(self._order), longest))
        self._start(work, now)

    def _leading(self, hashes: list[int], most: int) -> int:
        """How many leading blocks are held. Whoever has a block has all before it: a bisection finds it."""
        low, high = 0, min(most, len(hashes))
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._held:
                low = middle
            else:
                high = middle - 1
        return low

    def _start(self, work: _Work, now: float) -> None:
        self._computing[work] = None
        work.ends_at = now + work.left_s
        self._push(work.ends_at, work)

    def _computed(self, work: _Work, now: float) -> None:
        del self._computing[work]
        if self._queue:
            self._start(heappop(self._queue)[2], now)
        player = work.player
        self.measured.ttft_s.append(now - player.arrived)
        pace = self._cost.pace(1, player.step.prompt_tokens)
        ended = now + pace.after_s(player.step.output_tokens - 1)
        following = player.answered(ended)
        if following is not None:
            self._push(following, player)
        elif not player.script.beside:
            self.measured.session_s.append(ended - player.began)
