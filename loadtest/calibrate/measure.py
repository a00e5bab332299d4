"""Sends rounds of requests to a real engine and notes what each took."""

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from loadtest.calibrate.episodes import Round, Timed
from loadtest.calibrate.script import Piece, Submit
from loadtest.calibrate.server import Answer, Server

_WARM_UP: Final = (100, 3000, 2100)


class Measured(NamedTuple):
    """One request as it went."""

    at_s: float
    """When it was sent, after its round began."""
    submit: Submit
    ttft_s: float
    total_s: float
    """To the last token."""
    cached_tokens: int


class MeasuredRound(NamedTuple):
    """A round and what became of its requests, as the plan has them."""

    kind: str
    timed: bool
    shape: int
    requests: tuple[Measured, ...]


async def warm_up(server: Server) -> None:
    """The first prompts of an engine pay for what is made on first use."""
    for number, tokens in enumerate(_WARM_UP):
        await server.ask(_tokens(Piece(f"warm up {number}", tokens)), 4)


async def measure(server: Server, rounds: Sequence[Round]) -> list[MeasuredRound]:
    """Send them one round after the other."""
    return [await _round(server, one) for one in rounds]


async def _round(server: Server, one: Round) -> MeasuredRound:
    prompts = {timed.submit.id: _prompt(timed.submit) for timed in one.requests}
    began = time.perf_counter()

    async def send(timed: Timed) -> Answer:
        await asyncio.sleep(timed.at_s - (time.perf_counter() - began))
        return await server.ask(prompts[timed.submit.id], timed.submit.reply.tokens)

    async with asyncio.TaskGroup() as group:
        tasks = [(timed, group.create_task(send(timed))) for timed in one.requests]
    answers = [(timed.submit, task.result()) for timed, task in tasks]
    measured = tuple(
        Measured(answer.sent_s - began, submit, answer.ttft_s, answer.total_s, answer.cached_tokens)
        for submit, answer in answers
    )
    return MeasuredRound(one.kind, one.timed, one.shape, measured)


def _prompt(submit: Submit) -> list[int]:
    return [token for piece in submit.prompt for token in _tokens(piece)]


def _tokens(piece: Piece) -> list[int]:
    """Printable bytes, drawn one after the other: a shorter piece of one name begins the longer one."""
    return Random(piece.name).choices(range(0x20, 0x7F), k=piece.tokens)
