"""The format with one session a line: turns as differences to the turn before, sub-agents among them.

Ids of blocks are local to a session. Between sessions only the leading tokens are shared, those of tools
and system prompt, and those by all sessions where both have the same length.
"""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Final

import msgspec

from router.core.hashing import hash64
from router.simulator.replay.trace import SubAgent, TraceSession, TraceTurn

# A hundred times the longest context of today: what is above is a slip, and would fill the memory.
_MOST_TOKENS: Final = 100_000_000

_PAIR: Final = Packing("<QQ")


class _Agent(msgspec.Struct):
    t: float | None = None
    agent_id: str | None = None
    tool_tokens: int | None = None
    system_tokens: int | None = None


class _Request(msgspec.Struct, rename={"prompt": "in"}):
    """A turn, or a sub-agent with turns of its own."""

    t: float | None = None
    prompt: int | None = None
    out: int | None = None
    think: float | None = None
    blocks: int | None = None
    lcp: int = 0
    new: list[int] = []
    agent: _Agent | None = None
    requests: "list[_Request] | None" = None


class _Session(msgspec.Struct):
    id: str
    requests: list[_Request]
    block_tokens: int = 64
    tool_tokens: int | None = None
    system_tokens: int | None = None


class SessionReader:
    """Takes a file's lines, and has its sessions."""

    def __init__(self) -> None:
        self.sessions: list[TraceSession] = []
        self.block_tokens = 0
        """0 before the first line."""
        self._decode = msgspec.json.Decoder(_Session).decode
        self._ids: set[str] = set()
        self._leads: dict[tuple[int, int], list[int]] = {}
        """The chain of blocks that tools and system prompt of these lengths make."""

    def take(self, line: bytes) -> None:
        """Read one line. Raises `ValueError` or msgspec's error where it is no session."""
        read = self._decode(line)
        if read.block_tokens < 1:
            raise ValueError(f"block_tokens: must be at least 1, not {read.block_tokens}")
        if self.block_tokens and read.block_tokens != self.block_tokens:
            raise ValueError(f"block_tokens: {read.block_tokens}, and {self.block_tokens} before")
        if read.id in self._ids:
            raise ValueError(f"id: there was a session {read.id!r} before")
        self.block_tokens = read.block_tokens
        salt = hash64(read.id.encode())
        agents: list[SubAgent] = []
        for place, request in enumerate(read.requests):
            if (agent := request.agent) is None:
                continue
            where = f"requests[{place}]"
            began = agent.t if agent.t is not None else request.t
            if request.requests is None or any(inner.agent is not None for inner in request.requests):
                raise ValueError(f"{where}: a sub-agent has `requests`, and no sub-agents of its own")
            name = agent.agent_id or str(len(agents))
            session = self._session(
                f"{read.id}/{name}", request.requests, agent.tool_tokens, agent.system_tokens, salt, where
            )
            after = sum(earlier.agent is None for earlier in read.requests[:place])
            agents.append(SubAgent(_not_negative(began, f"{where}.agent.t"), after, session))
        own = [request for request in read.requests if request.agent is None]
        session = self._session(read.id, own, read.tool_tokens, read.system_tokens, salt, "", tuple(agents))
        self._ids.add(read.id)
        self.sessions.append(session)

    def _session(
        self,
        name: str,
        requests: Sequence[_Request],
        tool_tokens: int | None,
        system_tokens: int | None,
        salt: int,
        where: str,
        agents: tuple[SubAgent, ...] = (),
    ) -> TraceSession:
        lead_tokens = int(
            _not_negative(tool_tokens, "tool_tokens") + _not_negative(system_tokens, "system_tokens")
        )
        lead_blocks = min(lead_tokens, _MOST_TOKENS) // self.block_tokens
        expanded: list[list[int]] = []
        before = 0
        for place, request in enumerate(requests):
            at = f"{where}turn {place}" if not where else f"{where}, turn {place}"
            expanded.append(_expand(request, before, self.block_tokens, at))
            before = request.lcp + len(expanded[-1])
        lead_ids = _lead_ids(requests, expanded, lead_blocks)
        lead = self._lead((tool_tokens or 0, system_tokens or 0), len(lead_ids))
        hashes: list[int] = []
        turns = []
        for request, ids in zip(requests, expanded, strict=True):
            del hashes[request.lcp :]
            _append(hashes, ids, lead_ids, lead, salt)
            turns.append(
                TraceTurn(
                    at_s=request.t or 0.0,
                    prompt_tokens=request.prompt or 0,
                    output_tokens=request.out or 0,
                    think_s=request.think or 0.0,
                    kept=request.lcp,
                    fresh=tuple(hashes[request.lcp :]),
                )
            )
        return TraceSession(name, 0.0, tuple(turns), lead_blocks, agents)

    def _lead(self, lengths: tuple[int, int], blocks: int) -> list[int]:
        """The shared chain, at least so many blocks of it."""
        chain = self._leads.setdefault(lengths, [])
        root = hash64(_PAIR.pack(*lengths))
        for position in range(len(chain), blocks):
            chain.append(hash64(_PAIR.pack(0, position), chain[-1] if chain else root))
        return chain


def _lead_ids(requests: Sequence[_Request], expanded: Sequence[list[int]], blocks: int) -> list[int]:
    """The ids that tools and system prompt have in this session: those that its first prompt of at least
    that length begins with. Empty where there is none."""
    ids: list[int] = []
    for request, fresh in zip(requests, expanded, strict=True):
        ids = ids[: request.lcp] + fresh
        if len(ids) >= blocks:
            return ids[:blocks]
    return []


def _append(
    hashes: list[int], ids: Sequence[int], lead_ids: Sequence[int], lead: Sequence[int], salt: int
) -> None:
    """Name further blocks of a prompt: those of the shared beginning alike in all sessions."""
    position = len(hashes)
    shared = 0
    if position == 0 or (position <= len(lead_ids) and hashes[-1] == lead[position - 1]):
        for own, common in zip(ids, lead_ids[position:], strict=False):
            if own != common:
                break
            shared += 1
        hashes.extend(lead[position : position + shared])
    parent = hashes[-1] if hashes else salt
    pack = _PAIR.pack
    for block in ids[shared:]:
        parent = hash64(pack(salt, block), parent)
        hashes.append(parent)


def _expand(request: _Request, before: int, block_tokens: int, where: str) -> list[int]:
    """The ids of the blocks that are new, checked against all else that the turn says of itself."""
    if request.prompt is None:
        raise ValueError(f"{where}: `in` is missing")
    if not 1 <= request.prompt <= _MOST_TOKENS:
        raise ValueError(f"{where}: in: must be from 1 to {_MOST_TOKENS}, not {request.prompt}")
    for name, value in (("t", request.t), ("out", request.out), ("think", request.think)):
        _not_negative(value, f"{where}: {name}")
    if not 0 <= request.lcp <= before:
        raise ValueError(f"{where}: lcp: {request.lcp}, and the turn before has {before} blocks")
    firsts, counts = request.new[::2], request.new[1::2]
    if len(firsts) != len(counts) or min(firsts, default=0) < 0 or min(counts, default=1) < 1:
        raise ValueError(f"{where}: new: must be pairs of a first id and a count")
    if max(firsts, default=0) > 1 << 62:
        raise ValueError(f"{where}: new: an id is above 2^62")
    total = request.lcp + sum(counts)
    if request.blocks is not None and request.blocks != total:
        raise ValueError(f"{where}: blocks: {request.blocks}, but lcp and new make {total}")
    if total * block_tokens > request.prompt:
        raise ValueError(f"{where}: {total} blocks of {block_tokens} tokens, but `in` is {request.prompt}")
    ids: list[int] = []
    for first, count in zip(firsts, counts, strict=True):
        ids.extend(range(first, first + count))
    return ids


def _not_negative(value: float | None, what: str) -> float:
    """The value, 0 for none."""
    if value is not None and not value >= 0:
        raise ValueError(f"{what}: must not be negative, and is {value}")
    return value or 0.0
