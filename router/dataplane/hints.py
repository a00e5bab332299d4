"""The hint that goes with a turn to a replica that can pull: where else its prompt's KV lies.

To one with a KV agent goes a signed hint with every turn, also where nothing is to be pulled from another
replica: it says whose session it is, and keeps the agent from asking around on its own. To one with vLLM's
own P2P tier go the source's address and a name for the transfer, and nothing where nothing is pulled. Knows
no connections.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from router.base.ids import ReplicaId
from router.core.decide import Decision
from router.core.plan import PullRules
from router.core.request import Chain, Turn
from router.kv.hint import VERSION, sign

_VALID_S: Final = 300
"""A turn may wait in its replica for as long until its KV is asked for."""

_MS: Final = 1000
_LEAST_MS: Final = 1
_MOST_MS: Final = 3_600_000


class HintWriter:
    """Writes hints under one secret, which the KV agents have as well."""

    __slots__ = ("_pools", "_rules", "_secret", "_wall")

    def __init__(
        self,
        secret: bytes,
        rules: PullRules,
        *,
        pools: Sequence[ReplicaId] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`pools`: KV gateways, which any turn may pull from. `wall`: seconds since 1970."""
        self._secret = secret
        self._rules = rules
        self._pools = [str(pool) for pool in pools]
        self._wall = wall

    def member(self, turn: Turn, decision: Decision, epoch: int, label: str, request_id: bytes) -> bytes:
        """The member of the request body, `"kv_transfer_params":{…}`, without a comma on either side.

        `epoch`: which life of the replica it is for. `label`: what the agents call the tenant. `request_id`:
        the `X-Request-Id` that goes upstream.
        """
        pull, rules = decision.pull, self._rules
        sources = list(self._pools)
        deadline_s = rules.deadline_s
        if pull is not None:
            sources = [str(pull.source), *(pool for pool in sources if pool != pull.source)]
            deadline_s = pull.deadline_s
        hint = {
            "v": VERSION,
            "session": turn.session or "",
            "tenant": label,
            "sources": sources,
            "epoch": epoch,
            "stall_ms": _millis(rules.stall_s),
            "deadline_ms": _millis(deadline_s),
            "system_tokens": system_tokens(turn.chain, decision.prompt_tokens),
            "exp": int(self._wall()) + _VALID_S,
        }
        signed = sign(
            hint, secret=self._secret, replica=decision.replica, request=request_id.decode("latin-1")
        )
        text = json.dumps({"homing": signed}, separators=(",", ":"))
        return b'"kv_transfer_params":' + text.encode("ascii")


def p2p_source(address: str, name: bytes) -> bytes:
    """The same member for vLLM's P2P tier: pull from the one at `address`, `host:port`. `name`: the
    transfer's, which no other has."""
    host, _, port = address.rpartition(":")
    source = {
        "kv_request_id": name.decode("latin-1"),
        "remote_host": host.strip("[]"),
        "remote_port": int(port),
    }
    return b'"kv_transfer_params":' + msgspec.json.encode({"remote_kv_source": source})


def system_tokens(chain: Chain, prompt_tokens: int) -> int:
    """How much of the prompt is tools and system prompt, which sessions share: their part of its bytes, in
    tokens."""
    if not chain.system or not chain.ends[-1]:
        return 0
    return prompt_tokens * chain.ends[chain.system - 1] // chain.ends[-1]


def _millis(seconds: float) -> int:
    return min(_MOST_MS, max(_LEAST_MS, round(seconds * _MS)))
