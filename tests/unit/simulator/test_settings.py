"""Replica settings: nonsense is refused, all of it at once."""

import pytest

from router.base.errors import SettingsError
from router.simulator.settings import ReplicaSettings


def test_the_defaults_stand() -> None:
    assert ReplicaSettings().context_tokens == 131_072


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        ReplicaSettings(block_size=0, prefill_tps=-1.0, time_scale=float("nan"), host_gbps=-1.0, model="")
    assert [fault.split(":")[0] for fault in caught.value.faults] == [
        "block_size",
        "prefill_tps",
        "time_scale",
        "host_gbps",
        "model",
    ]


def test_a_host_tier_needs_a_way_back() -> None:
    with pytest.raises(SettingsError, match="host_gbps above 0"):
        ReplicaSettings(host_kv_blocks=10, host_gbps=0.0)


def test_the_context_is_what_the_kv_can_hold() -> None:
    assert ReplicaSettings(kv_blocks=11, block_size=16).context_tokens == 160


def test_a_block_takes_its_bytes_over_the_bandwidth() -> None:
    settings = ReplicaSettings(block_size=16, kv_bytes_per_token=163_840, host_gbps=26.2144)
    assert settings.host_block_s == pytest.approx(16 / 20_000)
