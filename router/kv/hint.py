"""The router's signed hint: where a request's KV may be had, and who may have it.

Pure. The signature binds the hint to the replica and the request that it was made for: a copy of it is
worth nothing elsewhere, an altered one nothing anywhere.
"""

import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

VERSION: Final = 1
MAX_AGE_S: Final = 600.0
"""How far ahead a hint's end may lie, in seconds: so long its use is remembered."""

_REMEMBERED: Final = 100_000
_CONTEXT: Final = b"homing kv hint 1\n"


class HintFaultKind(StrEnum):
    """Why a hint is not followed."""

    MALFORMED = "malformed"
    VERSION = "version"
    SIGNATURE = "signature"
    """Altered, made with another secret, or for another replica or request."""
    EXPIRED = "expired"
    REPLAYED = "replayed"
    UNSIGNED = "unsigned"
    """The agent has no secret to hold it against."""


class HintFault(Exception):
    """A hint that is not followed."""

    def __init__(self, kind: HintFaultKind) -> None:
        super().__init__(kind.value)
        self.kind = kind


class Hint(NamedTuple):
    """What a hint says."""

    session: str
    tenant: str
    """The label that the request's `cache_salt` carries, too."""
    sources: tuple[str, ...]
    """Names of agents and of the pool, the best first. Only configured ones are ever dialled."""
    epoch: int
    """The router's view of the fleet that it was made from."""
    stall_s: float
    deadline_s: float
    system_tokens: int
    expires: float
    """Seconds since 1970."""


def sign(hint: Mapping[str, Any], *, secret: bytes, replica: str, request: str) -> dict[str, Any]:
    """The hint with its signature, as `kv_transfer_params["homing"]` carries it.

    `request`: the `X-Request-Id` that goes upstream.
    """
    return {**hint, "sig": _signature(hint, secret, replica, request)}


class HintReader:
    """Checks hints for one replica, and remembers which were used."""

    __slots__ = ("_replica", "_secret", "_used")

    def __init__(self, *, secret: bytes | None, replica: str) -> None:
        self._secret = secret
        self._replica = replica
        self._used: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def read(self, raw: Mapping[str, Any], request: str, wall: float) -> Hint:
        """The hint that came with the engine's request of that id. Raises `HintFault`.

        `wall`: seconds since 1970. The same request may bring its hint again, after a preemption.
        """
        if raw.get("v") != VERSION:
            raise HintFault(HintFaultKind.VERSION if type(raw.get("v")) is int else HintFaultKind.MALFORMED)
        hint = _parsed(raw)
        if self._secret is None:
            raise HintFault(HintFaultKind.UNSIGNED)
        signature = raw.get("sig")
        if type(signature) is not str or not signature.isascii():
            raise HintFault(HintFaultKind.MALFORMED)
        bare = {name: value for name, value in raw.items() if name != "sig"}
        fits = [
            hmac.compare_digest(signature, _signature(bare, self._secret, self._replica, bound))
            for bound in _bound_ids(request)
        ]
        if not any(fits):
            raise HintFault(HintFaultKind.SIGNATURE)
        if not wall < hint.expires <= wall + MAX_AGE_S:
            raise HintFault(HintFaultKind.EXPIRED)
        whole = _whole(request)
        if self._used.setdefault(signature, (hint.expires, whole))[1] != whole:
            raise HintFault(HintFaultKind.REPLAYED)
        self._forget(wall)
        return hint

    def _forget(self, wall: float) -> None:
        while self._used:
            expires, _ = next(iter(self._used.values()))
            if expires > wall and len(self._used) <= _REMEMBERED:
                return
            self._used.popitem(last=False)


def _signature(hint: Mapping[str, Any], secret: bytes, replica: str, request: str) -> str:
    canonical = json.dumps(hint, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    bound = json.dumps([replica, request], separators=(",", ":"))
    text = _CONTEXT + bound.encode() + b"\n" + canonical.encode()
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _whole(request: str) -> str:
    """The engine's id of the request that this one is a part of: for each of several answers to one prompt,
    vLLM makes a request of its own, and puts its number before the id."""
    number, mark, rest = request.partition("_")
    return rest if mark and number.isdigit() else request


def _bound_ids(request: str) -> Iterator[str]:
    """The request ids that an engine's id may stand for: vLLM puts its own word before the `X-Request-Id`
    that it was given, and up to two more behind it."""
    yield request
    middle = request.partition("-")[2]
    for _ in range(3):
        if middle:
            yield middle
        middle = middle.rpartition("-")[0]


def _parsed(raw: Mapping[str, Any]) -> Hint:
    try:
        sources = raw["sources"]
        hint = Hint(
            _of(raw["session"], str),
            _of(raw["tenant"], str),
            tuple(_of(source, str) for source in _of(sources, list)),
            _of(raw["epoch"], int),
            _of(raw["stall_ms"], int) / 1000,
            _of(raw["deadline_ms"], int) / 1000,
            _of(raw["system_tokens"], int),
            float(_of(raw["exp"], int)),
        )
        json.dumps(raw, allow_nan=False)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise HintFault(HintFaultKind.MALFORMED) from None
    bounded = len(hint.session) <= 256 and len(hint.tenant) <= 256 and len(hint.sources) <= 64
    sane = 0 < hint.stall_s <= 3600 and 0 < hint.deadline_s <= 3600 and 0 <= hint.system_tokens < 1 << 40
    if not (bounded and sane and len(raw) <= 32):
        raise HintFault(HintFaultKind.MALFORMED)
    return hint


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value
