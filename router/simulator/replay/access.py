"""The access log of a router as a trace: its sessions with their own chains, and what could not be used.

Lines stand in the order in which turns ended, and each has only what is new since its session's last one. A
log may begin in mid-session, miss lines or end in a torn one: whatever cannot be used is counted by reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct as Packing
from typing import Final, NamedTuple

import msgspec

from router.core.hashing import hash64
from router.core.observe import FAILURES, Outcome, WaitEnd
from router.core.request import Chain
from router.simulator.replay.trace import SubAgent, TraceSession, TraceTurn

BLOCK_TOKENS: Final = 64
"""As in the shared trace: a quarter of the work that vLLM's 16 would be, and on average 24 tokens of a prompt
that would have been found are not."""

_FORMAT: Final = 1
_FAILED: Final = frozenset(outcome.value for outcome in (*FAILURES, Outcome.CLIENT_ERROR, Outcome.SHORTAGE))
_BLOCK: Final = Packing("<Q")


class _Line(msgspec.Struct):
    homing: int
    at: float
    session: str | None = None
    model: str = ""
    parent: str | None = None
    last: bool = False
    computes: bool = True
    continued: bool = False
    keep: int = 0
    after: str = ""
    new: str = ""
    sizes: list[int] = []
    opening: int = 0
    refused: str | None = None
    outcome: str | None = None
    prompt_tokens: int | None = None
    estimated_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    wait_ms: float = 0.0
    duration_ms: float = 0.0


class _Turn(NamedTuple):
    at: float
    chain: Chain
    prompt_tokens: int
    output_tokens: int
    ended: float
    last: bool


@dataclass(slots=True)
class _Session:
    name: str
    parent: str | None
    turns: list[_Turn] = field(default_factory=list)


_decode = msgspec.json.Decoder(_Line).decode


class AccessReader:
    """Takes a log's lines, and has its sessions."""

    def __init__(self) -> None:
        self._chains: dict[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._unused: dict[str, tuple[int, int]] = {}
        """By reason: how many lines, and the number of the first."""
        self._estimated = 0
        self._ends: dict[int, int] = {}
        """Tokens up to and including a segment, by its hash: the same in all prompts that have it."""

    def take(self, number: int, line: bytes) -> None:
        """Read one line. Raises `ValueError` where the format is one that this version does not know."""
        try:
            read = _decode(line)
        except msgspec.MsgspecError:
            self._leave_out(number, "not whole, or no line of an access log")
            return
        if read.homing != _FORMAT:
            raise ValueError(f"format {read.homing} of the access log, and this version reads {_FORMAT}")
        reason = self._use(read)
        if reason:
            self._leave_out(number, reason)

    def sessions(self) -> tuple[TraceSession, ...]:
        """The sessions, in order of their beginning, sub-agents in those that started them."""
        found = sorted(self._sessions.items(), key=lambda item: (item[1].turns[0].at, item[0]))
        for _, session in found:
            session.turns.sort(key=lambda turn: turn.at)
        found.sort(key=lambda item: (item[1].turns[0].at, item[0]))
        first = found[0][1].turns[0].at if found else 0.0
        began = {key: session.turns[0].at for key, session in found}
        made = {key: self._made(session, first) for key, session in found}
        agents: dict[tuple[str, str], list[SubAgent]] = {}
        whole: list[TraceSession] = []
        # A sub-agent begins after whoever started it, so from the last to the first each finds its own made.
        for key, session in reversed(found):
            own = made[key]
            if key in agents:
                own = TraceSession(own.id, own.at_s, own.turns, own.lead_blocks, tuple(reversed(agents[key])))
            above = (session.parent, key[1]) if session.parent is not None else None
            if above is None or above not in began or above == key or began[above] > began[key]:
                whole.append(own)
                continue
            after = sum(turn.at < began[key] for turn in self._sessions[above].turns)
            agents.setdefault(above, []).append(SubAgent(began[key] - began[above], after, own))
        return tuple(reversed(whole))

    def notes(self) -> tuple[str, ...]:
        """What was not used and why, and what was guessed at; nothing where there is nothing to say."""
        notes = [
            f"{count} line{'s' if count > 1 else ''} not used: {reason} (the first is line {number})"
            for reason, (count, number) in sorted(self._unused.items(), key=lambda item: -item[1][0])
        ]
        if self._estimated:
            notes.append(f"{self._estimated} turns reported no prompt tokens: the router's estimate is used")
        return tuple(notes)

    def _leave_out(self, number: int, reason: str) -> None:
        count, first = self._unused.get(reason, (0, number))
        self._unused[reason] = (count + 1, first)

    def _use(self, line: _Line) -> str:
        """Take in a line; the reason why not, where it cannot be used."""
        if line.refused is not None:
            return "refused by the router"
        if line.outcome == WaitEnd.LEFT:
            return "left while it waited"
        if line.session is None:
            return "without a session"
        if line.continued:
            return "goes on from a stored response"
        if not line.sizes and not line.keep:
            return "without a prompt"
        key = line.session, line.model
        chain = self._chain(key, line)
        if chain is None:
            return "goes on from a line that is not there"
        if not line.computes:
            return "computes no prompt"
        if line.outcome in _FAILED:
            return "failed, or refused by the replica"
        prompt_tokens = line.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = line.estimated_prompt_tokens
            self._estimated += 1
        if not prompt_tokens or prompt_tokens < 1:
            return "of no length"
        session = self._sessions.get(key)
        if session is None:
            name = line.session if not line.model else f"{line.session}/{line.model}"
            session = self._sessions[key] = _Session(name, line.parent)
        ended = line.at + (line.wait_ms + line.duration_ms) / 1000
        output = line.completion_tokens or 0
        session.turns.append(_Turn(line.at, chain, prompt_tokens, output, ended, line.last))
        return ""

    def _chain(self, key: tuple[str, str], line: _Line) -> Chain | None:
        """A line's whole chain; `None` where what it goes on from is missing, or what it says is no chain."""
        hashes, ends = self._chains.get(key, ((), ()))
        try:
            new = bytes.fromhex(line.new)
        except ValueError:
            new = b"?"
        fits = 0 <= line.keep <= len(hashes) and (
            not line.keep or f"{hashes[line.keep - 1]:016x}" == line.after
        )
        if not fits or len(new) != 8 * len(line.sizes) or min(line.sizes, default=0) < 0:
            self._chains.pop(key, None)
            return None
        added = [int.from_bytes(new[at : at + 8], "big") for at in range(0, len(new), 8)]
        end = ends[line.keep - 1] if line.keep else 0
        stops = []
        for size in line.sizes:
            end += size
            stops.append(end)
        hashes, ends = (*hashes[: line.keep], *added), (*ends[: line.keep], *stops)
        self._chains[key] = hashes, ends
        return Chain(hashes, ends, min(max(line.opening, 0), len(hashes)))

    def _made(self, session: _Session, first: float) -> TraceSession:
        began = before = session.turns[0].at
        hashes: tuple[int, ...] = ()
        blocks: list[int] = []
        turns: list[TraceTurn] = []
        for turn in session.turns:
            stops = self._token_ends(turn)
            common = _common(hashes, turn.chain.hashes)
            kept = min(len(blocks), stops[common - 1] // BLOCK_TOKENS) if common else 0
            hashes = turn.chain.hashes
            blocks = [*blocks[:kept], *_blocks(turn, stops, kept)]
            turns.append(
                TraceTurn(
                    at_s=turn.at - began,
                    prompt_tokens=turn.prompt_tokens,
                    output_tokens=turn.output_tokens,
                    think_s=max(0.0, turn.at - before),
                    kept=kept,
                    fresh=tuple(blocks[kept:]),
                    chain=turn.chain,
                    last=turn.last,
                )
            )
            before = turn.ended
        return TraceSession(session.name, began - first, tuple(turns), lead_blocks=0)

    def _token_ends(self, turn: _Turn) -> list[int]:
        """Where each segment ends, in tokens: those of earlier prompts where they did, the others by their
        share of what is left."""
        hashes, ends = turn.chain.hashes, turn.chain.ends
        stops: list[int] = []
        known = 0
        for place, segment in enumerate(hashes):
            stop = self._ends.get(segment)
            if stop is None or stop > turn.prompt_tokens:
                break
            stops.append(stop)
            known = place + 1
        start, start_bytes = (stops[-1], ends[known - 1]) if known else (0, 0)
        rest = ends[-1] - start_bytes
        for place in range(known, len(hashes)):
            share = (ends[place] - start_bytes) / rest if rest else 1.0
            stops.append(start + round((turn.prompt_tokens - start) * share))
        stops[-1] = turn.prompt_tokens
        for place in range(known, len(hashes)):
            self._ends.setdefault(hashes[place], stops[place])
        return stops


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading hashes are the same."""
    count = 0
    for mine, others in zip(one, other, strict=False):
        if mine != others:
            break
        count += 1
    return count


def _blocks(turn: _Turn, stops: Sequence[int], first: int) -> list[int]:
    """Names of a prompt's full blocks from one on: by the segment in which each ends, and its number."""
    names: list[int] = []
    place = 0
    hashes = turn.chain.hashes
    for number in range(first, turn.prompt_tokens // BLOCK_TOKENS):
        while stops[place] < (number + 1) * BLOCK_TOKENS:
            place += 1
        names.append(hash64(_BLOCK.pack(number), hashes[place]))
    return names
