"""vLLM's values become plain ones, and engines that cannot share are told apart."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from router.connector import compat
from router.connector.compat import Change, Hashes, Unsuitable


def request(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(request_id="r", num_computed_tokens=0, block_hashes=[], **values)


def config(folder: Path, **parallel: Any) -> SimpleNamespace:
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "rank": 0, "data_parallel_rank": 0}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(
            enable_prefix_caching=True, cache_dtype="auto", prefix_caching_hash_algo="sha256"
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=4096),
        model_config=SimpleNamespace(
            model=str(folder),
            tokenizer=str(folder),
            revision=None,
            dtype=torch.float32,
            quantization=None,
            served_model_name="tiny",
            hf_config=SimpleNamespace(to_dict=lambda: {"hidden_size": 8, "_name_or_path": str(folder)}),
        ),
        compilation_config=SimpleNamespace(static_forward_context={}),
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy="recompute", kv_connector_extra_config=None
        ),
    )


def kv_cache(spec: Any = None, groups: int = 1) -> SimpleNamespace:
    spec = spec or full_attention()
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * groups,
        kv_cache_layout="LBHNC",
        hash_block_size=None,
    )


def full_attention(block_size: int = 64) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=2, head_size=8, dtype=torch.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"w" * 100)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_hashes_are_a_view_that_grows_and_a_block_is_known_by_its_last() -> None:
    one = request()
    one.block_hashes = [bytes([number]) * 32 for number in range(5)]
    whole, half = Hashes(one, 64, 64), Hashes(one, 64, 32)
    assert len(whole) == 5
    assert whole[1] == b"\1" * 32
    assert (len(half), half[0], half[1]) == (2, b"\1" * 32, b"\3" * 32)
    one.block_hashes.append(b"\5" * 32)
    assert len(half) == 3
    assert half[:9] == [b"\1" * 32, b"\3" * 32, b"\5" * 32]


def test_short_hashes_are_filled_up() -> None:
    one = request()
    one.block_hashes = [b"x" * 16]
    assert Hashes(one, 64, 64)[0] == b"x" * 16 + b"\0" * 16


def test_what_a_request_says_and_what_it_may_lack() -> None:
    bare = request()
    assert (compat.tenant_of(bare), compat.hint_of(bare), compat.session_of(bare)) == ("", None, "")
    assert compat.reads_cache(bare)
    full = request(
        cache_salt="salt",
        kv_transfer_params={"homing": {"v": 1}},
        session_id="s",
        skip_reading_prefix_cache=True,
    )
    assert (compat.tenant_of(full), compat.hint_of(full), compat.session_of(full)) == ("salt", {"v": 1}, "s")
    assert not compat.reads_cache(full)
    for odd in (None, [], {"homing": 3}, {"homing": [1]}, {}):
        assert compat.hint_of(request(kv_transfer_params=odd)) is None


def test_a_schedule_becomes_changes_and_drafts_are_not_certain() -> None:
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [
        NewRequestData(
            "n", [1], [], None, None, block_ids=([4, 5],), num_computed_tokens=0, lora_request=None
        )
    ]
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=["a", "b", "c"],
        resumed_req_ids={"b"},
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[([6],), ([7, 8],), None],
        num_computed_tokens=[0, 0, 0],
        num_output_tokens=[0, 0, 0],
    )
    assert list(compat.changes(output)) == [
        Change("n", [4, 5], anew=True),
        Change("a", [6], anew=False),
        Change("b", [7, 8], anew=True),
    ]
    one = request()
    one.num_computed_tokens = 100
    assert compat.computed_after(output, one, 4) == 104
    output.scheduled_spec_decode_tokens = {"r": [1, 2, 3]}
    assert compat.computed_after(output, one, 4) == 101


def test_free_blocks_may_be_unknown() -> None:
    assert compat.free_blocks(None) is None
    assert compat.free_blocks(SimpleNamespace(get_num_free_blocks=lambda: 7)) == 7


def test_an_engine_that_can_share(model: Path) -> None:
    shape = compat.shape_of(config(model, tensor_parallel_size=2), kv_cache())
    assert (shape.block_size, shape.hash_block_size, shape.ranks, shape.tokens_a_step) == (64, 64, 2, 4096)


@pytest.mark.parametrize(
    ("cache", "parallel", "words"),
    [
        (kv_cache(groups=2), {}, "2 kinds"),
        (
            kv_cache(
                SlidingWindowSpec(
                    block_size=64, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=128
                )
            ),
            {},
            "keeps no whole prefix",
        ),
        (kv_cache(), {"pipeline_parallel_size": 2}, "pipeline_parallel_size is 2"),
    ],
)
def test_an_engine_that_cannot_share_says_why(
    model: Path, cache: Any, parallel: dict[str, int], words: str
) -> None:
    with pytest.raises(Unsuitable, match=words):
        compat.shape_of(config(model, **parallel), cache)


def test_no_prefix_caching_is_nothing_to_share(model: Path) -> None:
    off = config(model)
    off.cache_config.enable_prefix_caching = False
    with pytest.raises(Unsuitable, match="prefix caching is off"):
        compat.shape_of(off, kv_cache())


def namespace_of(settings: Any) -> Any:
    cache = kv_cache()
    shape = compat.shape_of(settings, cache)
    layers = {"l0": torch.zeros(5, 2, 64, 16), "l1": torch.zeros(5, 2, 64, 16)}
    layers["shared"] = layers["l0"]
    facts = compat.cache_facts(settings, cache, layers)
    return compat.namespace(settings, cache, shape, facts, compat.digests(settings))


def test_a_namespace_says_everything_that_the_use_of_a_block_depends_on(model: Path) -> None:
    found = namespace_of(config(model))
    assert (found.layers, found.block_size, found.block_bytes) == (2, 64, 2 * 2 * 64 * 16 * 4)
    assert (found.kv_dtype, found.tp_size, found.ranks) == ("torch.float32", 1, "0")
    assert found.hash_algorithm == f"sha256 of vLLM {compat.version()}"
    assert found.layout == "LBHNC (2, 64, 16)"
    assert found == namespace_of(config(model))


@pytest.mark.parametrize(
    ("file", "field"), [("model.safetensors", "revision"), ("tokenizer.json", "tokenizer")]
)
def test_other_weights_or_another_tokenizer_are_another_namespace(model: Path, file: str, field: str) -> None:
    before = namespace_of(config(model))
    (model / file).write_bytes(b"v" * (model / file).stat().st_size)
    after = namespace_of(config(model))
    assert [name for name in before.as_dict() if getattr(before, name) != getattr(after, name)] == [field]


def test_weights_of_the_same_size_that_differ_anywhere_near_a_sample_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(3 << 20))
    before = compat.digests(config(tmp_path))
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert compat.digests(config(tmp_path)).weights != before.weights


def test_the_place_of_a_copy_of_the_model_does_not_matter(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    for file in ("model.safetensors", "tokenizer.json"):
        (other / file).write_bytes((model / file).read_bytes())
    assert namespace_of(config(model)) == namespace_of(config(other))


def test_a_model_without_files_here_is_known_by_its_name_and_revision() -> None:
    nowhere = config(Path("no-such/model"))
    assert compat.digests(nowhere).tokenizer == "no-such/model@default"


def test_names_of_engines_and_ranks() -> None:
    several = config(Path(), tensor_parallel_size=2, rank=3, data_parallel_rank=1)
    assert compat.engine_name(several, "r0") == "r0.1"
    assert compat.rank_of(several) == 1
    assert compat.engine_name(config(Path()), "r0") == "r0"


def test_only_recompute_is_good_enough() -> None:
    settings = config(Path())
    assert compat.recomputes(settings)
    assert compat.extra_config(settings) == {}
    settings.kv_transfer_config.kv_load_failure_policy = "fail"
    assert not compat.recomputes(settings)
