"""KV that one simulated replica computed and another fetches, as vLLM's NixlConnector has it.

A prefill replica keeps the blocks of a prompt until a decode replica has fetched them or their lease is up; a
decode replica keeps those of a turn that it answered until a prefill replica has, or its own time is up. Who
fetches is told by parameters in the requests, and, as there, nothing is checked: parameters that are used up
or expired fail, those that do not fit the prompt bring other blocks than were wanted (counted here, since a
simulated reply would not show it), and some end the replica. Knows the parameters and the pins; how bytes get
from one replica to the other is its caller's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.simulator.settings import ReplicaSettings

PATH: Final = "/sim/fetch"
"""Where replicas fetch from one another."""

_WHERE: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a request's parameters tell it to fetch first."""

    host: str
    port: int
    engine: str
    request: str
    blocks: int
    """Leading blocks of the prompt that come from there; 0 only lets go of them."""


class BrokenError(Exception):
    """Parameters that no engine survives, or waits on for ever."""

    def __init__(self, *, dies: bool) -> None:
        super().__init__()
        self.dies = dies
        """It ends; else it never answers."""


def fetch_of(params: Mapping[str, Any], prompt_tokens: int, settings: ReplicaSettings) -> Fetch | None:
    """What `params` tell a replica to fetch; `None` = nothing. Raises `BrokenError`."""
    back = bool(params.get("do_remote_decode"))
    groups = params.get("remote_block_ids")
    if (
        not (back or params.get("do_remote_prefill"))
        or not groups
        or any(key not in params for key in _WHERE)
    ):
        return None
    if back and not settings.two_way:
        raise BrokenError(dies=False)
    named = len(groups[0])
    tokens = min(int(params.get("remote_num_tokens") or 0), prompt_tokens) if back else prompt_tokens
    if back and tokens < settings.recompute_threshold:
        tokens = 0
    blocks = -(-tokens // settings.block_size)
    if blocks > named:
        raise BrokenError(dies=True)
    return Fetch(
        str(params["remote_host"]),
        int(params["remote_port"]),
        str(params["remote_engine_id"]),
        str(params["remote_request_id"]),
        tokens // settings.block_size,
    )


@dataclass(slots=True)
class _Pin:
    hashes: Sequence[int]
    release: Callable[[], None]
    timer: asyncio.TimerHandle


class Handoffs:
    """What one life of a replica keeps for others. Made on the loop's thread, while it runs."""

    def __init__(self, settings: ReplicaSettings, engine_id: str) -> None:
        self.engine_id = engine_id
        self.wrong_blocks = 0
        """Blocks that were fetched and are of another prompt."""
        self.fetched_blocks = 0
        self._settings = settings
        self._pins: dict[str, _Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def offer(
        self, params: Mapping[str, Any] | None, request_id: str, host: str, port: int, tokens: int
    ) -> dict[str, Any] | None:
        """What the answer to a request with these parameters says of the blocks that are kept; `None` where
        none are. `tokens`: those whose KV there is."""
        if not params or not (params.get("do_remote_decode") or params.get("do_remote_prefill")):
            return None
        prefills = bool(params.get("do_remote_decode"))
        if not prefills and not self._settings.two_way:
            return None
        blocks = -(-tokens // self._settings.block_size)
        loop_time = asyncio.get_running_loop().time()
        return {
            "do_remote_prefill": prefills,
            "do_remote_decode": not prefills,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": tokens,
            "remote_blocks_expiry_time": None if prefills else loop_time + self._settings.decode_pin_s,
            "transfer_mode": "pull",
        }

    def keep(self, offer: Mapping[str, Any], hashes: Sequence[int], release: Callable[[], None]) -> None:
        """Keep the blocks that `offer` tells of; `release` gives them back, and is called once."""
        settings = self._settings
        kept_s = settings.prefill_lease_s if offer["do_remote_prefill"] else settings.decode_pin_s
        request = str(offer["remote_request_id"])
        timer = asyncio.get_running_loop().call_later(kept_s / settings.time_scale, self.fetch, request)
        self._pins[request] = _Pin(hashes, release, timer)

    def fetch(self, request: str) -> Sequence[int] | None:
        """The hashes of what was kept of a request, which is given back; `None` where nothing is."""
        pin = self._pins.pop(request, None)
        if pin is None:
            return None
        pin.timer.cancel()
        pin.release()
        return pin.hashes

    def came(self, wanted: Sequence[int], sent: Sequence[int], blocks: int) -> int:
        """So many blocks were fetched. Returns how many came, and counts those that are not the prompt's."""
        came = min(blocks, len(sent))
        self.fetched_blocks += came
        self.wrong_blocks += sum(mine != theirs for mine, theirs in zip(wanted[:came], sent, strict=False))
        return came

    def close(self) -> None:
        """The replica ends: nothing is kept, and nobody is told."""
        for pin in self._pins.values():
            pin.timer.cancel()
        self._pins.clear()
