"""The endpoints that the router answers itself: its own health, and the models of the whole fleet."""

from typing import Final

from router.base.errors import ErrorKind, Refused
from router.core.engine import Engine
from router.dataplane.head import Head
from router.dataplane.problems import HttpRefused

_MODELS: Final = "/v1/models"
_RELAYED: Final = frozenset({"/tokenize", "/detokenize"})

# They change the one replica that they happen to reach, and are for whoever runs it.
_ADMINISTRATIVE: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})


class LocalEndpoints:
    """Answers from what the engine knows; asks no replica."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def answer(self, head: Head) -> tuple[int, bytes] | None:
        """Status and JSON body, or `None` if the request is for a replica. Raises `Refused`."""
        path = head.path
        if path == "/health":
            self._reading(head)
            return 200, b'{"status":"ok"}'
        if path.startswith(_MODELS) and (len(path) == len(_MODELS) or path[len(_MODELS)] == "/"):
            self._reading(head)
            return self._models(path[len(_MODELS) + 1 :])
        if not path.startswith("/v1/") and path not in _RELAYED:
            raise Refused(
                ErrorKind.NOT_FOUND,
                f"no endpoint {path}: this router serves /v1/…, /tokenize, /detokenize and /health",
            )
        if path in _ADMINISTRATIVE:
            raise Refused(
                ErrorKind.NOT_FOUND,
                f"{path} is not relayed: it changes a single replica; call each replica itself",
            )
        if path.endswith("/"):
            # A replica would answer with a redirect to itself.
            raise Refused(ErrorKind.NOT_FOUND, f"no endpoint {path}: leave out the slash at the end")
        return None

    def _models(self, model: str) -> tuple[int, bytes]:
        cards = self._engine.model_cards()
        if not model:
            return 200, b'{"object":"list","data":[%b]}' % b",".join(card.raw for card in cards.values())
        card = cards.get(model)
        if card is None:
            served = ", ".join(cards) or "none"
            raise Refused(
                ErrorKind.NO_SUCH_MODEL, f"no live replica serves the model {model!r}; served: {served}"
            )
        return 200, card.raw

    @staticmethod
    def _reading(head: Head) -> None:
        if head.method not in (b"GET", b"HEAD"):
            raise HttpRefused(
                405, f"{head.path} can only be read, with GET", code="method_not_allowed", allow="GET, HEAD"
            )
