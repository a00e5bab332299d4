"""Reads a replica's `/v1/models` answer into cards, each kept as the replica sent it."""

from typing import Final

import msgspec

from router.core.fleet import ModelCard

# A model and its adapters. An answer with more is refused: each card is kept, and shown to clients.
_MAX_CARDS: Final = 4096


class _Answer(msgspec.Struct):
    data: list[msgspec.Raw]


class _Card(msgspec.Struct):
    id: str


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_CARD: Final = msgspec.json.Decoder(_Card)


def parse_models(body: bytes) -> tuple[ModelCard, ...]:
    """The cards in their order, the first of each id. Raises `ValueError` with the fault in words."""
    try:
        body.decode()  # a card is passed on as it is, so all of it must be text
        answer = _ANSWER.decode(body)
        if len(answer.data) > _MAX_CARDS:
            raise ValueError(f"its model list has {len(answer.data)} entries, more than {_MAX_CARDS}")
        cards: dict[str, ModelCard] = {}
        for raw in answer.data:
            card = _CARD.decode(raw)
            cards.setdefault(card.id, ModelCard(card.id, bytes(raw)))
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"its model list cannot be read: {error}") from error
    return tuple(cards.values())
