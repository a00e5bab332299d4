"""How two sides show that they know the fleet's secret, without saying it. Sans I/O.

    dials                            listens
    HELLO name, role, nonce  ──────►
                             ◄────── CHALLENGE name, nonce, proof
    PROOF proof              ──────►
                             ◄────── WELCOME, or REFUSED

A proof is an HMAC over both nonces, both names, the role and the direction: it fits no other connection and
cannot be sent back. The one that dials learns first whom it has reached, and says nothing more if that is
not one of the fleet. Neither confidentiality nor integrity of what follows is part of it.
"""

import hashlib
import hmac
import secrets
from typing import Final

from router.kv import messages as m

_CONTEXT: Final = b"homing kv proof 1"
_NONCE: Final = 32


class AuthFault(Exception):
    """The other side did not show what it must. `reason` goes into its REFUSED."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Dialling:
    """The side that dials."""

    __slots__ = ("_hello", "_secret", "peer_name")

    def __init__(self, secret: bytes, name: str, role: m.Role) -> None:
        self._secret = secret
        self._hello = m.Hello(name, role, secrets.token_bytes(_NONCE))
        self.peer_name: str | None = None
        """What the other side calls itself; `None` until it has shown that it knows the secret."""

    def begin(self) -> m.Hello:
        """What to send first."""
        return self._hello

    def answer(self, challenge: m.Challenge) -> m.Proof:
        """What to send next. Raises `AuthFault` where the other side does not know the secret."""
        if not hmac.compare_digest(challenge.proof, _proof(self._secret, b"listens", self._hello, challenge)):
            raise AuthFault("secret", "the other side does not know this fleet's secret")
        self.peer_name = challenge.name
        return m.Proof(_proof(self._secret, b"dials", self._hello, challenge))


class Listening:
    """The side that listens."""

    __slots__ = ("_challenge", "_hello", "_name", "_secret")

    def __init__(self, secret: bytes, name: str) -> None:
        self._secret = secret
        self._name = name
        self._hello: m.Hello | None = None
        self._challenge: m.Challenge | None = None

    def challenge(self, hello: m.Hello) -> m.Challenge:
        """What to answer. Raises `AuthFault` for a second one."""
        if self._hello is not None:
            raise AuthFault("message", "HELLO comes once")
        self._hello = hello
        bare = m.Challenge(self._name, secrets.token_bytes(_NONCE), bytes(_NONCE))
        self._challenge = m.Challenge(bare.name, bare.nonce, _proof(self._secret, b"listens", hello, bare))
        return self._challenge

    def verify(self, proof: m.Proof) -> m.Hello:
        """Who it is. Raises `AuthFault` where it does not know the secret."""
        if self._hello is None or self._challenge is None:
            raise AuthFault("message", "PROOF comes after HELLO")
        expected = _proof(self._secret, b"dials", self._hello, self._challenge)
        if not hmac.compare_digest(proof.proof, expected):
            raise AuthFault("secret", "the secret is not this fleet's")
        return self._hello


def _proof(secret: bytes, direction: bytes, hello: m.Hello, challenge: m.Challenge) -> bytes:
    parts = (
        _CONTEXT, direction, hello.role.encode(), hello.name.encode(), challenge.name.encode(), hello.nonce,
        challenge.nonce,
    )  # fmt: skip
    # Each with its length, so that none can lend a byte to its neighbour.
    text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    return hmac.new(secret, text, hashlib.sha256).digest()
