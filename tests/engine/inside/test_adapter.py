"""Between vLLM's calls and the two sides: no error reaches the engine, no waiting request is forgotten."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import KVConnectorOutput

from router.connector import HomingConnector
from router.connector.adapter import ReadyWorkers
from router.connector.settings import SettingsFault

BLOCK = 64


def config(folder: Path, *, policy: str = "recompute", **extra: Any) -> SimpleNamespace:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, rank=0, data_parallel_rank=0
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=True, cache_dtype="auto", prefix_caching_hash_algo="sha256"
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512),
        model_config=SimpleNamespace(
            model=str(folder), tokenizer=str(folder), revision=None, dtype=torch.float32, hf_config=None
        ),
        compilation_config=SimpleNamespace(static_forward_context={}),
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy=policy,
            kv_connector_extra_config={"agent": str(folder / "no-agent.sock"), **extra},
            is_kv_producer=True,
        ),
    )


def caches(groups: int = 1) -> SimpleNamespace:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=8, dtype=torch.float32)
    return SimpleNamespace(
        num_blocks=9,
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * groups,
        kv_cache_layout="LBHNC",
        hash_block_size=None,
    )


def request(name: str = "r", blocks: int = 4) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=name,
        num_tokens=blocks * BLOCK + 1,
        num_computed_tokens=0,
        block_hashes=[bytes([number]) * 32 for number in range(blocks)],
        kv_transfer_params=None,
    )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[HomingConnector, HomingConnector]:
    """A scheduler's and a worker's, that know of each other, and no agent."""
    scheduler = HomingConnector(config(tmp_path), KVConnectorRole.SCHEDULER, caches())
    worker = HomingConnector(config(tmp_path), KVConnectorRole.WORKER, caches())
    worker.register_kv_caches({"l0": torch.zeros(9, 2, BLOCK, 16)})
    scheduler.set_xfer_handshake_metadata({0: worker.get_handshake_metadata()})
    return scheduler, worker


def blocks_of(ids: list[int]) -> SimpleNamespace:
    return SimpleNamespace(get_block_ids=lambda: (ids,))


def step(scheduler: HomingConnector, worker: HomingConnector) -> tuple[set[str] | None, set[int]]:
    worker.bind_connector_metadata(scheduler.build_connector_meta(SchedulerOutput.make_empty()))
    worker.start_load_kv(None)
    worker.wait_for_save()
    _, loaded = worker.get_finished(set())
    missing = worker.get_block_ids_with_load_errors()
    worker.clear_connector_metadata()
    output = KVConnectorOutput(
        finished_recving=loaded, invalid_block_ids=missing, kv_connector_worker_meta=ReadyWorkers(0)
    )
    scheduler.update_connector_output(output)
    return loaded, missing


def test_without_an_agent_nothing_is_offered_and_nothing_delayed(
    pair: tuple[HomingConnector, HomingConnector],
) -> None:
    scheduler, worker = pair
    one = request()
    scheduler.on_new_request(one)
    assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    assert step(scheduler, worker) == (None, set())
    assert scheduler.request_finished(one, [1, 2]) == (False, None)
    assert scheduler.request_finished_all_groups(one, ([1, 2],)) == (False, None)
    assert not scheduler.requires_kv_delivery
    figures = scheduler.get_kv_connector_stats().to_dict()
    assert figures["offers:disconnected"] == 1
    assert figures["agent_connected"] == 0.0
    scheduler.shutdown()
    worker.shutdown()


def test_a_version_that_does_not_announce_requests_is_served_too(
    pair: tuple[HomingConnector, HomingConnector],
) -> None:
    scheduler, _ = pair
    assert scheduler.get_num_new_matched_tokens(request(), 0) == (0, False)
    assert scheduler.get_kv_connector_stats().to_dict()["asks"] == 1


def test_asking_at_every_step_does_not_read_the_prompt_again(
    pair: tuple[HomingConnector, HomingConnector],
) -> None:
    class Counted(list[bytes]):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            self.reads += 1
            return super().__getitem__(at)

    scheduler, _ = pair
    one = request(blocks=200)
    one.block_hashes = Counted(one.block_hashes)
    scheduler.on_new_request(one)
    once = one.block_hashes.reads
    for _ in range(50):
        scheduler.get_num_new_matched_tokens(one, 0)
    assert one.block_hashes.reads == once


def test_a_request_that_waits_for_a_load_gets_its_end_even_where_the_order_fails(
    pair: tuple[HomingConnector, HomingConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, worker = pair

    def broken(*_args: object, **_kwargs: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(scheduler._scheduler, "allocated", broken)
    scheduler.update_state_after_alloc(request(), blocks_of([3, 4, 5]), 2 * BLOCK)
    assert step(scheduler, worker) == ({"r"}, {4, 5})
    assert scheduler.get_kv_connector_stats().to_dict()["faults:update_state_after_alloc"] == 1


def test_orders_go_out_even_where_saving_fails(
    pair: tuple[HomingConnector, HomingConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, worker = pair
    scheduler.on_new_request(request())
    scheduler.update_state_after_alloc(request(), blocks_of([3, 4]), BLOCK)

    def broken(*_args: object, **_kwargs: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(scheduler._scheduler, "orders", broken)
    assert step(scheduler, worker) == ({"r"}, {4})


def test_loads_end_where_a_worker_fails(
    pair: tuple[HomingConnector, HomingConnector], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, worker = pair

    def broken(*_args: object, **_kwargs: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(worker._worker, "advance", broken)
    scheduler.update_state_after_alloc(request(), blocks_of([3, 4]), BLOCK)
    assert step(scheduler, worker) == ({"r"}, {4})
    assert worker.get_kv_connector_stats().to_dict()["faults:advance"] == 1


@pytest.mark.parametrize("name", ["on_new_request", "get_num_new_matched_tokens", "update_connector_output"])
def test_an_error_in_the_scheduler_is_nothing_to_load(
    pair: tuple[HomingConnector, HomingConnector], name: str
) -> None:
    scheduler, _ = pair
    answer = getattr(scheduler, name)(object(), *([0] if name.startswith("get") else []))
    assert answer == ((0, False) if name.startswith("get") else None)
    assert scheduler.get_kv_connector_stats().to_dict()[f"faults:{name}"] == 1


def test_what_a_version_hands_over_in_addition_is_ignored(
    pair: tuple[HomingConnector, HomingConnector],
) -> None:
    scheduler, worker = pair
    scheduler.on_new_request(request(), "more", more=1)
    assert scheduler.get_num_new_matched_tokens(request(), 0, more=1) == (0, False)
    worker.save_kv_layer("l0", None, None, more=1)
    worker.wait_for_layer_load("l0")
    assert not [key for key in scheduler.get_kv_connector_stats().to_dict() if key.startswith("faults")]


def test_a_load_that_falls_short_must_be_computed_and_not_answered_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match='set it to "recompute"'):
        HomingConnector(config(tmp_path, policy="fail"), KVConnectorRole.SCHEDULER, caches())
    with pytest.raises(SettingsFault, match="agnet: unknown"):
        HomingConnector(config(tmp_path, agnet="x"), KVConnectorRole.SCHEDULER, caches())


@pytest.mark.parametrize("role", [KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER])
@pytest.mark.parametrize("why", ["mode", "groups", "layout"])
def test_what_is_off_does_nothing_and_breaks_nothing(tmp_path: Path, role: KVConnectorRole, why: str) -> None:
    settings = config(tmp_path, mode="off") if why == "mode" else config(tmp_path)
    connector = HomingConnector(settings, role, caches(2 if why == "groups" else 1))
    cache = torch.zeros(9, 2, BLOCK, 16)
    connector.register_kv_caches({"l0": cache.transpose(1, 2) if why == "layout" else cache})
    if role == KVConnectorRole.WORKER and why == "layout":
        assert connector.get_handshake_metadata() is None
    connector.set_xfer_handshake_metadata({})
    one = request()
    connector.on_new_request(one)
    assert connector.get_num_new_matched_tokens(one, 0) == (0, False)
    connector.update_state_after_alloc(one, blocks_of([1]), 0)
    connector.bind_connector_metadata(connector.build_connector_meta(SchedulerOutput.make_empty()))
    connector.start_load_kv(None)
    connector.wait_for_save()
    assert connector.get_finished(set()) == (None, None)
    assert connector.get_block_ids_with_load_errors() == set()
    connector.update_connector_output(KVConnectorOutput())
    assert connector.request_finished(one, [1]) == (False, None)
    connector.shutdown()


def test_workers_whose_caches_differ_share_nothing(tmp_path: Path) -> None:
    scheduler = HomingConnector(config(tmp_path), KVConnectorRole.SCHEDULER, caches())
    scheduler.set_xfer_handshake_metadata({0: "one", 1: "other"})
    scheduler.on_new_request(request())
    assert scheduler.get_num_new_matched_tokens(request(), 0) == (0, False)


def test_readiness_adds_up_over_workers() -> None:
    assert ReadyWorkers(1).aggregate(ReadyWorkers(1)) == ReadyWorkers(2)
