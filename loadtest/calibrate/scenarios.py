"""The scripts that the model is held to: one for each rule of the engine, and many by chance."""

from collections.abc import Iterator
from hashlib import blake2b
from random import Random
from typing import Final

from loadtest.calibrate.script import Limits, Piece, Script, Submit, Tick

_ROOMY: Final = Limits(block_size=64, blocks=600, batch_tokens=2048, max_num_seqs=16)
_TIGHT: Final = Limits(block_size=64, blocks=41, batch_tokens=512, max_num_seqs=8)


def rules() -> Iterator[Script]:
    """One script a rule."""
    system = Piece("system", 700)
    yield Script("a session grows turn by turn", _ROOMY, tuple(_alone(_session("s", system, 6, 330, 90))))
    yield Script(
        "a whole prompt is cached, to the token",
        _ROOMY,
        tuple(
            _alone(
                [_submit(f"{n}-{again}", [Piece("text", n)], 3) for n in (640, 639, 641) for again in "ab"]
            )
        ),
    )
    yield Script(
        "prompts of less than a block, of a block, and of one more",
        _ROOMY,
        tuple(
            _alone(
                [_submit(f"{n}-{again}", [Piece("text", n)], 1) for again in "ab" for n in (1, 63, 64, 65)]
            )
        ),
    )
    yield Script(
        "agents share a system prompt",
        _ROOMY,
        tuple(_alone([_submit(f"{n}", [system, Piece(f"task {n}", 150 + n)], 20) for n in range(6)])),
    )
    yield Script(
        "a prefix is shared while it is computed",
        _ROOMY,
        (
            Tick((_submit("first", [system, Piece("a", 4000)], 40),)),
            Tick(tuple(_submit(f"at once {n}", [system, Piece(f"b{n}", 200)], 40) for n in range(4))),
            Tick((_submit("later", [system, Piece("a", 3000)], 40),)),
        ),
    )
    yield Script(
        "equal prompts at one instant",
        _ROOMY,
        (Tick(tuple(_submit(f"{n}", [Piece("same", 1500)], 150) for n in range(5))),),
    )
    sessions = [_session(f"s{n}", system, 5, 260, 60) for n in range(5)]
    in_turn = [turn for turns in zip(*sessions, strict=True) for turn in turns]
    yield Script("sessions push each other out", _TIGHT, tuple(_alone(in_turn)))
    yield Script(
        "the least recently used goes first, its tail ahead of its head",
        _TIGHT,
        tuple(
            _alone(
                [
                    _submit(f"{step}", [Piece(name, tokens)], 2)
                    for step, (name, tokens) in enumerate(
                        [("a", 1000), ("b", 900), ("a", 500), ("c", 1200), ("a", 1000), ("b", 900), ("c", 64)]
                    )
                ]
            )
        ),
    )
    yield Script(
        "blocks run out and the last admitted computes again",
        _TIGHT,
        (
            Tick(tuple(_submit(f"{n}", [Piece(f"p{n}", 700)], 400) for n in range(3))),
            Tick((_submit("late", [Piece("p1", 650)], 30),)),
        ),
    )
    yield Script(
        "one that does not fit holds up those behind it",
        _TIGHT,
        (
            Tick((_submit("long", [Piece("a", 1500)], 150),)),
            Tick((_submit("big", [Piece("b", 1400)], 10), _submit("small", [Piece("c", 64)], 10))),
        ),
    )
    yield Script(
        "clients leave: waiting, in mid-prompt, while decoding",
        _TIGHT,
        (
            Tick((_submit("decodes", [Piece("a", 300)], 200),)),
            Tick((_submit("prefills", [Piece("b", 1300)], 50), _submit("waits", [Piece("c", 1500)], 50))),
            Tick(),
            Tick(aborts=("prefills",)),
            Tick((_submit("again", [Piece("b", 1300)], 5),)),
            Tick(aborts=("waits",)),
            Tick(),
            Tick(aborts=("decodes",)),
            Tick((_submit("after", [Piece("a", 400)], 5),)),
        ),
    )
    yield Script(
        "eight warm turns behind a cold prompt",
        _ROOMY._replace(batch_tokens=512),
        (
            *_alone([_submit(f"open {n}", [Piece(f"w{n}", 600)], 2) for n in range(8)]),
            Tick(
                (
                    _submit("cold", [Piece("cold", 9000)], 20),
                    *(_submit(f"warm {n}", [Piece(f"w{n}", 700)], 20) for n in range(8)),
                )
            ),
        ),
    )
    yield Script(
        "more requests than sequences",
        _ROOMY._replace(max_num_seqs=3),
        (Tick(tuple(_submit(f"{n}", [Piece(f"p{n}", 300)], 30 + 7 * n) for n in range(9))),),
    )


def by_chance(seed: int) -> Script:
    """Sessions that grow, share openings and replies, come at once and leave, on a small engine."""
    rng = Random(seed)
    limits = Limits(
        block_size=rng.choice([16, 32, 64]),
        blocks=rng.choice([12, 20, 41, 90]),
        batch_tokens=rng.choice([48, 128, 512, 2048]),
        max_num_seqs=rng.choice([2, 4, 16]),
    )
    room = (limits.blocks - 1) * limits.block_size
    openings = [Piece(f"opening {n}", rng.randint(1, room // 4)) for n in range(rng.randint(1, 3))]
    histories: list[tuple[Piece, ...]] = [(rng.choice(openings),) for _ in range(rng.randint(1, 6))]
    ticks: list[Tick] = []
    alive: list[str] = []
    number = 0
    for _ in range(rng.randint(5, 60)):
        submits, aborts = [], []
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 4])):
            which = rng.randrange(len(histories))
            said = Piece(f"said {rng.randrange(4) if rng.random() < 0.3 else number + 100}", 0)
            prompt = (*histories[which], said._replace(tokens=rng.randint(1, max(1, room // 8))))
            reply = rng.choice([1, 2, rng.randint(1, 3 * limits.block_size)])
            if sum(piece.tokens for piece in prompt) + reply > room:
                histories[which] = (rng.choice(openings),)
                continue
            submit = _submit(str(number), prompt, reply)
            number += 1
            submits.append(submit)
            if rng.random() < 0.7:
                histories[which] = (*prompt, submit.reply)
        if alive and rng.random() < 0.1:
            aborts.append(alive.pop(rng.randrange(len(alive))))
        alive += [submit.id for submit in submits]
        ticks.append(Tick(tuple(submits), tuple(aborts)))
        ticks += [Tick()] * rng.choice([0, 0, 1, 5, 40])
    return Script(f"by chance, seed {seed}", limits, tuple(ticks))


def _submit(name: str, prompt: list[Piece] | tuple[Piece, ...], reply_tokens: int) -> Submit:
    said = "+".join(f"{piece.name}:{piece.tokens}" for piece in prompt)
    digest = blake2b(said.encode(), digest_size=6).hexdigest()
    return Submit(name, tuple(prompt), Piece(f"reply to {digest}", reply_tokens))


def _session(name: str, system: Piece, turns: int, said: int, reply: int) -> list[Submit]:
    submits: list[Submit] = []
    history: tuple[Piece, ...] = (system,)
    for turn in range(turns):
        prompt = (*history, Piece(f"{name} says {turn}", said + 17 * turn))
        submits.append(_submit(f"{name}.{turn}", prompt, reply))
        history = (*prompt, submits[-1].reply)
    return submits


def _alone(submits: list[Submit]) -> Iterator[Tick]:
    """Each when the one before it has long ended."""
    for submit in submits:
        yield Tick((submit,))
        yield from [Tick()] * (submit.prompt_tokens // 128 + submit.reply.tokens)
