"""What is replayed: which sessions of a trace, when they begin, and each of their turns made ready.

The same workload is given to every policy. Knows no replica beyond the longest request that one can take.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from router.base.ids import OPEN_TENANT, SessionKey
from router.core.hashing import hash64
from router.core.request import Chain
from router.core.session import session_key
from router.simulator.replay.segments import Segmenter
from router.simulator.replay.trace import Trace, TraceSession, TraceTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to take of a trace."""

    rate: float = 0.0
    """Sessions that begin a second, at random distances. 0 = as the trace says."""
    sessions: int | None = None
    """At most so many: drawn under the seed where there is a rate, else the first; `None` = all."""
    max_turns: int | None = None
    """The session's own at most, sub-agents' not counted; `None` = all."""
    think_cap_s: float = 600.0
    seed: int = 0


class Step(NamedTuple):
    """A turn, ready to be sent."""

    prompt_tokens: int
    output_tokens: int
    think_s: float
    kept: int
    """Leading blocks that are those of the step before."""
    fresh: tuple[int, ...]
    reply: tuple[int, ...]
    """Names of the blocks that the answer fills, as far as the next prompt shows them."""
    chain: Chain
    last: bool


@dataclass(frozen=True, slots=True)
class Script:
    """A session, ready to be played."""

    key: SessionKey
    steps: tuple[Step, ...]
    agents: "tuple[tuple[int, float, Script], ...]"
    """Sub-agents: after how many steps each begins, and how many seconds after the last of these did (after
    the session did, for none)."""
    parent: SessionKey | None
    """Of the session that starts it, if it is a sub-agent."""

    @property
    def beside(self) -> bool:
        """Whether it is a sub-agent."""
        return self.parent is not None


@dataclass(frozen=True, slots=True)
class Workload:
    """Sessions and when they begin."""

    block_tokens: int
    starts: tuple[tuple[float, Script], ...]
    left_out: int
    """Turns whose prompt no replica could take."""


class Player:
    """A session on its way through its script."""

    __slots__ = ("arrived", "began", "hashes", "number", "script")

    def __init__(self, script: Script, began: float) -> None:
        self.script = script
        self.began = began
        self.number = 0
        """The step it is at."""
        self.arrived = began
        self.hashes: list[int] = []
        """The blocks of its prompt."""

    @property
    def step(self) -> Step:
        return self.script.steps[self.number]

    def arrive(self, now: float) -> None:
        """Its step is here: `hashes` are that one's from now on."""
        self.arrived = now
        self.hashes = [*self.hashes[: self.step.kept], *self.step.fresh]

    def started(self) -> "Iterator[Player]":
        """The sub-agents that the step at hand starts."""
        for after, delay_s, script in self.script.agents:
            if after == self.number + 1:
                yield from begin(script, self.arrived + delay_s)

    def answered(self, now: float) -> float | None:
        """The answer is complete: when the next step comes; `None` if this was the last."""
        self.number += 1
        if self.number == len(self.script.steps):
            return None
        return now + self.step.think_s


def begin(script: Script, now: float) -> Iterator[Player]:
    """A session that begins, with the sub-agents that it starts before its first turn."""
    if script.steps:
        yield Player(script, now)
    for after, delay_s, agent in script.agents:
        if after == 0:
            yield from begin(agent, now + delay_s)


def choose(trace: Trace, selection: Selection, context_tokens: int) -> Workload:
    """The workload that a selection makes of a trace, on replicas that take `context_tokens` at most,
    prompt and answer together."""
    rng = Random(selection.seed)
    sessions = list(trace.sessions)
    if selection.rate > 0:
        rng.shuffle(sessions)
    writer = _Writer(trace.block_tokens, selection, context_tokens)
    starts = []
    at = 0.0
    for session in sessions[: selection.sessions]:
        at = at + rng.expovariate(selection.rate) if selection.rate > 0 else session.at_s
        starts.append((at, writer.script(session)))
    return Workload(trace.block_tokens, tuple(starts), writer.left_out)


class _Writer:
    """Makes scripts of sessions, and counts what it leaves out."""

    def __init__(self, block_tokens: int, selection: Selection, context_tokens: int) -> None:
        self.left_out = 0
        self._block = block_tokens
        self._selection = selection
        self._context = context_tokens
        # Keys, and with them the ring's owners, differ from seed to seed as they do from one deployment's
        # secret to the next: else one lucky spread of the trace's ids would favour a policy at every seed.
        self._secret = b"replay %d" % selection.seed

    def script(self, session: TraceSession, parent: SessionKey | None = None) -> Script:
        key = session_key(self._secret, OPEN_TENANT, session.id)
        considered = session.turns if parent is not None else session.turns[: self._selection.max_turns]
        taken = [turn for turn in considered if turn.prompt_tokens < self._context]
        self.left_out += len(considered) - len(taken)
        agents = []
        for agent in session.agents:
            if agent.after > len(considered):
                continue  # the session is cut before it comes to this one
            before = [turn for turn in considered[: agent.after] if turn.prompt_tokens < self._context]
            delay_s = agent.at_s - (before[-1].at_s if before else 0.0)
            delay_s = min(max(0.0, delay_s), self._selection.think_cap_s)
            agents.append((len(before), delay_s, self.script(agent.session, key)))
        return Script(key, self._steps(session, considered), tuple(agents), parent)

    def _steps(self, session: TraceSession, considered: tuple[TraceTurn, ...]) -> tuple[Step, ...]:
        prompts = list(self._prompts(considered))
        segmenter = Segmenter(hash64(session.id.encode()), session.lead_blocks, self._block)
        hashes: list[int] = []
        steps = []
        for number, (turn, kept, fresh) in enumerate(prompts):
            hashes = [*hashes[:kept], *fresh]
            # As `max_tokens` is in vLLM, cut to what the context has room for. One token there always is.
            output = min(max(1, turn.output_tokens), self._context - turn.prompt_tokens)
            reply: tuple[int, ...] = ()
            if number + 1 < len(prompts):
                follower, same, added = prompts[number + 1]
                # Where the next prompt is not longer by the whole answer, a part of it (its reasoning) was
                # dropped, and the blocks behind are not the answer's.
                if same == len(hashes) and follower.prompt_tokens >= turn.prompt_tokens + output:
                    reply = added[: (turn.prompt_tokens + output) // self._block - len(hashes)]
            steps.append(
                Step(
                    turn.prompt_tokens,
                    output,
                    min(turn.think_s, self._selection.think_cap_s),
                    kept,
                    fresh,
                    reply,
                    turn.chain or segmenter.cut(hashes, kept, turn.prompt_tokens),
                    turn.last,
                )
            )
        return tuple(steps)

    def _prompts(self, considered: tuple[TraceTurn, ...]) -> Iterator[tuple[TraceTurn, int, tuple[int, ...]]]:
        """The turns that are taken, each as the difference to the one taken before it."""
        hashes: list[int] = []
        kept = 0
        for turn in considered:
            hashes = [*hashes[: turn.kept], *turn.fresh]
            kept = min(kept, turn.kept)
            if turn.prompt_tokens < self._context:
                yield turn, kept, tuple(hashes[kept:])
                kept = len(hashes)
