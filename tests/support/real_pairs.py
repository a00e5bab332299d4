"""Real vLLM engines that prefill and decode for one another (NixlConnector), one that does all, and a router.

Only for `make engine-test`, as `real_engines`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.real_engines import Plan, Replica, engines, free_port, make_model
from support.real_router import Router

PREFILLS = ("p0", "p1")
DECODE = "d0"
SINGLE = "s0"
KEPT_S = 600
"""For how long decode keeps a turn's blocks."""


@dataclass(frozen=True, kw_only=True)
class PairPlan(Plan):
    """An engine of a pair."""

    decodes: bool = False

    def transfer_config(self, folder: Path) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_consumer" if self.decodes else "kv_producer",
            "kv_buffer_device": "cpu",
            "kv_load_failure_policy": "recompute" if self.decodes else "fail",
            "kv_connector_extra_config": {
                "bidirectional_kv_xfer": True,
                "kv_recompute_threshold": 64,
                "decoder_kv_blocks_ttl": KEPT_S,
                "kv_lease_duration": 30,
            },
        }


def _plan(name: str, *, decodes: bool = False) -> PairPlan:
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "HOMING_NIXL_DELAY_US": "1000",
    }
    # Without, `/render` answers 403.
    arguments = ("--enable-scale-out",)
    return PairPlan(name=name, decodes=decodes, environment=environment, arguments=arguments)


def _router(folder: Path, replicas: Mapping[str, Replica], prefills: Sequence[str]) -> Router:
    listed = [
        {"name": name, "url": replicas[name].url, "role": "prefill", "two_way": True} for name in prefills
    ]
    listed.append({"name": DECODE, "url": replicas[DECODE].url, "role": "decode"})
    policy = {
        "strategy": "priced",
        "pair": {"ttl": f"{KEPT_S - 30}s", "deadline": "240s"},
        "price": {"prefill": {"seed_tokens_per_s": 3000}},
    }
    return Router(folder, listed, policy=policy, probe={"interval": "1s", "timeout": "120s"})


@contextmanager
def pairs(
    folder: Path, *, prefills: Sequence[str] = PREFILLS, single: bool = True
) -> Iterator[tuple[dict[str, Replica], Router]]:
    """Engines that prefill, one that decodes, `single`: one that does all by itself; and a router."""
    model = make_model(folder.parent / "model")
    plans: list[Plan] = [*map(_plan, prefills), _plan(DECODE, decodes=True)]
    if single:
        plans.append(Plan(name=SINGLE, connector=None))
    with engines(plans, folder, model) as replicas:
        router = _router(folder, replicas, prefills)
        try:
            yield replicas, router
        finally:
            router.stop()
