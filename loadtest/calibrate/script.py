"""Scripts for an engine: which requests come, and which leave, between one step and the next.

A prompt is made of named pieces. Two prompts share what they begin with by name and length, so that one
script means the same to an engine that wants tokens and to a model that wants hashes of blocks.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")

_LONGEST_PIECE: Final = 1 << 20


class Piece(NamedTuple):
    """The first `tokens` tokens of an endless text called `name`."""

    name: str
    tokens: int


class Submit(NamedTuple):
    """A request comes."""

    id: str
    prompt: tuple[Piece, ...]
    reply: Piece
    """What is generated. Equal prompts have equal replies, as with greedy decoding."""

    @property
    def prompt_tokens(self) -> int:
        return sum(piece.tokens for piece in self.prompt)


class Tick(NamedTuple):
    """What happens ahead of one step, the aborts first."""

    submits: tuple[Submit, ...] = ()
    aborts: tuple[str, ...] = ()


class Limits(NamedTuple):
    """The engine that a script is for."""

    block_size: int
    blocks: int
    """vLLM's `num_gpu_blocks`: one of them is never used."""
    batch_tokens: int
    max_num_seqs: int


class Script(NamedTuple):
    """Ticks, and after the last one steps until nothing is in flight."""

    name: str
    limits: Limits
    ticks: tuple[Tick, ...]


class Step(NamedTuple):
    """What an engine did in one step."""

    running: int
    waiting: int
    used: int
    """Blocks that requests hold, once the step's are taken."""
    chunks: tuple[tuple[int, int], ...]
    """Of each prompt that is computed on: tokens computed before, and in this step. Sorted."""
    preempted: tuple[str, ...]
    first: tuple[tuple[str, int], ...]
    """Requests whose first token is out, with their cached tokens. Sorted."""
    finished: tuple[str, ...]
    """Sorted."""
    left: int
    """Blocks that requests hold after the step."""


class Record(NamedTuple):
    """What an engine did with a script."""

    steps: tuple[Step, ...]
    queries: int
    """Prompt tokens looked up in the prefix cache."""
    hits: int


class Texts:
    """Numbers for the tokens of named pieces: equal only for equal name and place."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}

    def tokens(self, pieces: Sequence[Piece]) -> Iterator[int]:
        for name, count in pieces:
            base = self._names.setdefault(name, len(self._names)) * _LONGEST_PIECE
            yield from range(base, base + count)


def block_hashes(tokens: Sequence[int], block_size: int) -> list[int]:
    """Chained hashes of the full blocks."""
    hashes: list[int] = []
    parent = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = hash((parent, *tokens[start : start + block_size]))
        hashes.append(parent)
    return hashes


# As lines of JSON: a script and what an engine did with it, one pair a line. Most steps only decode, and
# are like the one before: equal neighbours stand there once, with their number.


def to_line(script: Script, record: Record) -> str:
    name, limits, ticks = script
    steps, queries, hits = record
    value = [[name, limits, _packed(ticks)], [_packed(steps), queries, hits]]
    return json.dumps(value, separators=(",", ":"))


def from_line(line: str) -> tuple[Script, Record]:
    (name, limits, ticks), (steps, queries, hits) = json.loads(line)
    script = Script(name, Limits(*limits), tuple(_unpacked(ticks, _tick)))
    return script, Record(tuple(_unpacked(steps, _step)), queries, hits)


def _packed(items: Iterable[object]) -> list[object]:
    return [[len(list(equal)), item] for item, equal in groupby(items)]


def _unpacked(packed: list[Any], read: Callable[..., _T]) -> Iterator[_T]:
    for number, fields in packed:
        yield from [read(*fields)] * number


def _tick(submits: list[Any], aborts: list[str]) -> Tick:
    return Tick(
        tuple(
            Submit(name, tuple(Piece(*piece) for piece in prompt), Piece(*reply))
            for name, prompt, reply in submits
        ),
        tuple(aborts),
    )


def _step(
    running: int,
    waiting: int,
    used: int,
    chunks: list[list[int]],
    preempted: list[str],
    first: list[list[Any]],
    finished: list[str],
    left: int,
) -> Step:
    return Step(
        running,
        waiting,
        used,
        tuple((behind, tokens) for behind, tokens in chunks),
        tuple(preempted),
        tuple((name, cached) for name, cached in first),
        tuple(finished),
        left,
    )


def differences(real: Record, simulated: Record) -> Mapping[str, str]:
    """Where two records part: field → what each says, of the first step that differs."""
    for number, (one, other) in enumerate(zip(real.steps, simulated.steps, strict=False)):
        if one != other:
            return {
                f"step {number}: {field}": f"{a} → {b}"
                for field, a, b in zip(Step._fields, one, other, strict=True)
                if a != b
            }
    return {
        field: f"{a} → {b}"
        for field, a, b in (
            ("steps", len(real.steps), len(simulated.steps)),
            ("queries", real.queries, simulated.queries),
            ("hits", real.hits, simulated.hits),
        )
        if a != b
    }
