"""Runs scripts on vLLM's own scheduler and block pool, without a model: every step is there to be looked at.

Run with the engine's Python. Reads scripts as lines of JSON from standard input, writes them with what the
scheduler did. Needs the folder of a model for its configuration; no weights are read.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

# Ahead of vLLM's import, which reads them.
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="ERROR")

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from loadtest.calibrate.script import Limits, Record, Script, Step, Submit, Texts, from_line, to_line

_CONTEXT: Final = 16_384


class RealScheduler:
    """vLLM's scheduler with a model that computes nothing and says what the script wants said."""

    def __init__(self, limits: Limits, model: Path) -> None:
        config = VllmConfig(
            model_config=ModelConfig(
                model=str(model), skip_tokenizer_init=True, dtype="float32", max_model_len=_CONTEXT
            ),
            scheduler_config=SchedulerConfig(
                max_num_batched_tokens=limits.batch_tokens,
                max_num_seqs=limits.max_num_seqs,
                max_model_len=_CONTEXT,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
            ),
            cache_config=CacheConfig(block_size=limits.block_size, enable_prefix_caching=True),
        )
        config.cache_config.num_gpu_blocks = limits.blocks
        attention = FullAttentionSpec(
            block_size=limits.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(limits.block_size, sha256)
        self._blocks = limits.blocks - 1
        self._scheduler = Scheduler(
            config,
            KVCacheConfig(limits.blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
            StructuredOutputManager(config),
            block_size=limits.block_size,
            log_stats=True,
        )
        self._texts = Texts()
        self._replies: dict[str, list[int]] = {}
        self._prefill_ends: dict[str, int] = {}
        """Tokens known when a request was last admitted."""
        self._queries = self._hits = 0

    def run(self, script: Script) -> Record:
        steps = []
        for tick in script.ticks:
            if tick.aborts:
                self._scheduler.finish_requests(tick.aborts, RequestStatus.FINISHED_ABORTED)
            for submit in tick.submits:
                self._submit(submit)
            steps.append(self._step())
        while self._scheduler.has_unfinished_requests():
            steps.append(self._step())
        return Record(tuple(steps), self._queries, self._hits)

    def _submit(self, submit: Submit) -> None:
        self._replies[submit.id] = list(self._texts.tokens([submit.reply]))
        self._scheduler.add_request(
            Request(
                submit.id,
                list(self._texts.tokens(submit.prompt)),
                SamplingParams(max_tokens=submit.reply.tokens, ignore_eos=True),
                None,
                block_hasher=self._hasher,
            )
        )

    def _step(self) -> Step:
        scheduler = self._scheduler
        before = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        was_running = {request.request_id for request in scheduler.running}
        output = scheduler.schedule()
        scheduled: dict[str, int] = output.num_scheduled_tokens
        preempted = [
            name for name, count in before.items() if scheduler.requests[name].num_preemptions > count
        ]
        chunks: list[tuple[int, int]] = []
        sampled: list[list[int]] = []
        for name, tokens in scheduled.items():
            request = scheduler.requests[name]
            behind = request.num_computed_tokens - tokens
            if request.num_computed_tokens < request.num_tokens:
                sampled.append([])
            else:
                sampled.append([self._replies[name][request.num_output_tokens]])
            if name not in was_running:
                self._prefill_ends[name] = request.num_tokens
            if behind < self._prefill_ends[name]:
                chunks.append((behind, tokens))
        used, running = self._used(), len(scheduler.running)
        waiting = scheduler.get_request_counts()[1]
        first, finished = [], []
        outputs: dict[int, Any] = scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=list(scheduled),
                req_id_to_index={name: index for index, name in enumerate(scheduled)},
                sampled_token_ids=sampled,
            ),
        )
        for client in outputs.values():
            for answer in client.outputs:
                if answer.prefill_stats is not None:
                    first.append((answer.request_id, answer.prefill_stats.num_cached_tokens))
                if answer.finish_reason is not None:
                    finished.append(answer.request_id)
            if client.scheduler_stats is not None:
                self._queries += client.scheduler_stats.prefix_cache_stats.queries
                self._hits += client.scheduler_stats.prefix_cache_stats.hits
        return Step(
            running,
            waiting,
            used,
            tuple(sorted(chunks)),
            tuple(preempted),
            tuple(sorted(first)),
            tuple(sorted(finished)),
            self._used(),
        )

    def _used(self) -> int:
        usage: float = self._scheduler.kv_cache_manager.usage
        return round(usage * self._blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder with the configuration of a model")
    model = parser.parse_args().model
    for line in sys.stdin:
        script, _ = from_line(line)
        print(to_line(script, RealScheduler(script.limits, model).run(script)), flush=True)


if __name__ == "__main__":
    main()
