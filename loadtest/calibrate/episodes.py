"""What is timed on a real engine: prompts cold and warm, decoding, and mixes of them under load.

Rounds come one after the other, each when all before it have been answered. Every shape of load comes three
times with other texts, far apart, so that a moment in which the machine was slow is one of three.
"""

from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from loadtest.calibrate.script import Limits, Piece, Submit

LIMITS: Final = Limits(block_size=64, blocks=800, batch_tokens=2048, max_num_seqs=16)
"""The engine that is timed."""
REPEATS: Final = 3


class Timed(NamedTuple):
    """A request and when it comes, in seconds after its round began."""

    at_s: float
    submit: Submit


class Round(NamedTuple):
    """Requests of one kind of load. `timed` is false for those that only fill the cache."""

    kind: str
    requests: tuple[Timed, ...]
    timed: bool = True
    shape: int = 0
    """Equal for rounds that differ in nothing but their texts."""


_LENGTHS: Final = (64, 150, 300, 450, 700, 1000, 1500, 2000, 2500, 3500, 5000, 7000, 10_000, 12_000, 15_000)
_TURNS: Final = (
    (1000, 64),
    (1500, 100),
    (2000, 300),
    (4000, 64),
    (4000, 1000),
    (6000, 800),
    (8000, 256),
    (9000, 2000),
)


def rounds(seed: int) -> Iterator[Round]:
    """All of them, in an order that mixes kinds."""
    rng = Random(seed)
    made = [*_alone(rng), *_warm(rng), *_decodes(rng), *_together(rng), *_convoys(rng), *_beside(rng)]
    for repeat in range(REPEATS):
        shapes = list(enumerate(made))
        rng.shuffle(shapes)
        for shape, group in shapes:
            for one in group:
                yield one._replace(requests=tuple(_again(repeat, *one.requests)), shape=shape)


def _again(repeat: int, *requests: Timed) -> Iterator[Timed]:
    """The same with other texts."""
    for at_s, submit in requests:
        pieces = tuple(piece._replace(name=f"{piece.name}.{repeat}") for piece in submit.prompt)
        reply = submit.reply._replace(name=f"{submit.reply.name}.{repeat}")
        yield Timed(at_s, Submit(f"{submit.id}.{repeat}", pieces, reply))


class _Names:
    """Texts of their own, so that nothing is shared by chance."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def submit(self, prompt: tuple[Piece, ...], reply_tokens: int) -> Submit:
        name = f"{self._rng.getrandbits(48):x}"
        return Submit(name, prompt, Piece(f"reply {name}", reply_tokens))

    def piece(self, tokens: int) -> Piece:
        return Piece(f"{self._rng.getrandbits(48):x}", tokens)


def _alone(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for tokens in _LENGTHS:
        request = names.submit((names.piece(tokens + rng.randrange(40)),), 1)
        yield [Round("cold, alone", (Timed(0.0, request),))]


def _warm(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for behind, fresh in _TURNS:
        opening = names.submit((names.piece(behind),), 1)
        turn = names.submit((*opening.prompt, names.piece(fresh + rng.randrange(20))), 1)
        yield [
            Round("opening", (Timed(0.0, opening),), timed=False),
            Round("warm, alone", (Timed(0.0, turn),)),
        ]


def _decodes(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for batch, context in (
        (1, 100),
        (2, 100),
        (4, 100),
        (6, 100),
        (10, 100),
        (16, 100),
        (1, 5000),
        (4, 2000),
    ):
        requests = [names.submit((names.piece(context + rng.randrange(40)),), 48) for _ in range(batch)]
        yield [Round("decoding", tuple(Timed(0.0, request) for request in requests))]


def _together(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for many in (2, 3, 5, 6, 8, 10, 12, 16):
        openings = [names.submit((names.piece(rng.randint(200, 1800)),), 1) for _ in range(many // 2)]
        turns = [names.submit((*one.prompt, names.piece(rng.randint(30, 400))), 16) for one in openings]
        fresh = [names.submit((names.piece(rng.randint(100, 1500)),), 16) for _ in range(many - len(turns))]
        mixed = [*turns, *fresh]
        rng.shuffle(mixed)
        spread = rng.choice([0.02, 0.2, 0.6])
        yield [
            *(Round("opening", (Timed(0.0, one),), timed=False) for one in openings),
            Round("load", tuple(Timed(rng.uniform(0, spread), one) for one in mixed)),
        ]


def _convoys(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for cold_tokens in (4000, 6000, 8000, 11_000):
        openings = [names.submit((names.piece(rng.randint(500, 900)),), 1) for _ in range(8)]
        cold = names.submit((names.piece(cold_tokens),), 8)
        turns = [names.submit((*one.prompt, names.piece(rng.randint(40, 200))), 8) for one in openings]
        yield [
            *(Round("opening", (Timed(0.0, one),), timed=False) for one in openings),
            Round(
                "convoy", (Timed(0.0, cold), *(Timed(0.05 + 0.003 * n, one) for n, one in enumerate(turns)))
            ),
        ]


def _beside(rng: Random) -> Iterator[list[Round]]:
    names = _Names(rng)
    for talkers, tokens in ((1, 1500), (4, 1500), (8, 4000), (1, 5000), (4, 6000), (8, 1500)):
        talking = [names.submit((names.piece(120 + rng.randrange(60)),), 120) for _ in range(talkers)]
        reader = names.submit((names.piece(tokens),), 8)
        yield [
            Round("beside decodes", (*(Timed(0.0, one) for one in talking), Timed(0.4, reader))),
        ]
