"""`HomingConnector`: vLLM's interface on one side, the scheduler's and the worker's side on the other.

Thin: it turns vLLM's values into plain ones and keeps every error from the engine. In the scheduler an error
becomes "nothing to load"; in a worker it ends the loads that go on, so that the engine computes them.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

import torch

from router.connector import compat
from router.connector.copies import copies_for
from router.connector.figures import Counting
from router.connector.metrics import HomingMetrics, HomingStats
from router.connector.orders import Orders
from router.connector.scheduler_side import Progress, Prompt, SchedulerSide
from router.connector.settings import SettingsFault, read_settings
from router.connector.worker_side import WorkerSide
from router.kv.keys import Namespace
from router.kv.local import SchedulerClient, WorkerClient

_Method = TypeVar("_Method", bound=Callable[..., Any])
_SAY_EVERY_S: Final = 60.0


@dataclass(slots=True)
class StepOrders(compat.ConnectorMetadata):  # type: ignore[misc]  # without vLLM's stubs a base is Any
    """A step's orders, as vLLM carries them to the workers."""

    orders: Orders


@dataclass(slots=True)
class ReadyWorkers(compat.WorkerMetadata):  # type: ignore[misc]  # without vLLM's stubs a base is Any
    """How many workers can save, as vLLM carries it to the scheduler."""

    count: int

    def aggregate(self, other: Self) -> Self:
        return type(self)(self.count + other.count)


class _Known(NamedTuple):
    """A request that is alive."""

    request: Any
    prompt: Prompt
    """Made once: the scheduler asks at every step for as long as the request waits."""


def kept_from_engine(answer: Callable[[], Any]) -> Callable[[_Method], _Method]:
    """The method never raises: what it answers instead is `answer()`, and the error is counted and said."""

    def wrap(method: _Method) -> _Method:
        @functools.wraps(method)
        def safe(self: "HomingConnector", *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception:  # noqa: BLE001 - whatever it is, it must not end the engine
                self._fault(method.__name__)
                return answer()

        return cast(_Method, safe)

    return wrap


class HomingConnector(compat.Connector, compat.HybridCaches):  # type: ignore[misc]  # without vLLM's stubs
    """One in the scheduler, one in each worker. Raises `SettingsFault` for what it cannot be run with."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config, *args, **kwargs)
        self._config = vllm_config
        self._caches = kv_cache_config
        self._settings = read_settings(compat.extra_config(vllm_config))
        if not compat.recomputes(vllm_config):
            raise SettingsFault(
                'kv_load_failure_policy: set it to "recompute" in --kv-transfer-config; with "fail", a load '
                "that falls short is answered with an error"
            )
        if not compat.version().startswith(compat.TESTED):
            compat.logger.warning("HomingConnector was not tried with vLLM %s", compat.version())
        self._counting = Counting()
        self._said: dict[str, float] = {}
        self._requests: dict[str, _Known] = {}
        self._pool: Any = None
        self._facts: compat.CacheFacts | None = None
        self._missing: set[int] = set()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if self._settings.mode == "off":
            return
        try:
            self._shape = compat.shape_of(vllm_config, kv_cache_config)
        except compat.Unsuitable as reason:
            compat.logger.warning("HomingConnector is off: %s", reason)
            return
        self._engine = compat.engine_name(vllm_config, self._settings.engine)
        if role == compat.ConnectorRole.SCHEDULER:
            self._digests = compat.digests(vllm_config)
            self._scheduler = SchedulerSide(
                self._settings,
                self._connect_scheduler,
                block_size=self._shape.block_size,
                counting=self._counting,
            )
        else:
            self._rank = compat.rank_of(vllm_config)
            self._worker = WorkerSide(self._connect_worker, rank=self._rank, counting=self._counting)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what is not saved is computed."""
        return False

    @property
    def supports_sleep_mode(self) -> bool:
        """Sleeping frees the caches under our feet."""
        return False

    # ---- scheduler ----

    @kept_from_engine(lambda: None)
    def bind_gpu_block_pool(self, gpu_block_pool: Any, *args: Any, **kwargs: Any) -> None:
        self._pool = gpu_block_pool

    @kept_from_engine(lambda: None)
    def set_xfer_handshake_metadata(self, metadata: Any, *args: Any, **kwargs: Any) -> None:
        facts = list(metadata.values())
        if self._scheduler is None or not facts:
            return
        if any(one != facts[0] for one in facts):
            compat.logger.warning("HomingConnector is off: the workers' KV caches differ: %s", facts)
            self._scheduler = None
            return
        self._facts = facts[0]

    @kept_from_engine(lambda: None)
    def on_new_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if (side := self._scheduler) is None:
            return
        if self._facts is not None:
            side.meet(self._namespace())
            self._facts = None
        known = self._requests[request.request_id] = _Known(request, self._prompt(request))
        side.arrive(known.prompt, time.monotonic())

    @kept_from_engine(lambda: (0, False))
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any
    ) -> tuple[int | None, bool]:
        if (side := self._scheduler) is None or not compat.reads_cache(request):
            return 0, False
        if request.request_id not in self._requests:  # a version that does not announce requests
            self.on_new_request(request)
        size = self._shape.block_size
        blocks = side.offer(
            self._requests[request.request_id].prompt,
            computed=num_computed_tokens // size,
            room=compat.free_blocks(self._pool),
            now=time.monotonic(),
        )
        if blocks is None:
            return None, False
        return blocks * size, blocks > 0

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any
    ) -> None:
        if (side := self._scheduler) is None:
            return
        count = num_external_tokens // self._shape.block_size
        block_ids = blocks.get_block_ids()[0] if count else ()
        try:
            side.allocated(request.request_id, count, block_ids, time.monotonic())
        except Exception:  # noqa: BLE001 - without an order for the workers, the request would wait for ever
            self._fault("update_state_after_alloc")
            if count:
                side.compute(request.request_id, tuple(block_ids)[-count:])

    def build_connector_meta(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if (side := self._scheduler) is None:
            return StepOrders(Orders())
        try:
            for change in compat.changes(scheduler_output):
                side.changed(change.request, change.block_ids, anew=change.anew)
            progress = self._progress(scheduler_output)
            tokens = scheduler_output.total_num_scheduled_tokens
            return StepOrders(side.orders(progress, tokens, time.monotonic()))
        except Exception:  # noqa: BLE001 - an error may lose saves, never a load that the scheduler waits for
            self._fault("build_connector_meta")
            side.lose_track()
            return StepOrders(side.bare_orders())

    @kept_from_engine(lambda: None)
    def update_connector_output(self, connector_output: Any, *args: Any, **kwargs: Any) -> None:
        if (side := self._scheduler) is None:
            return
        ready = getattr(connector_output, "kv_connector_worker_meta", None)
        if isinstance(ready, ReadyWorkers):
            side.workers_ready(ready.count >= self._shape.ranks)
        side.stepped(
            connector_output.finished_recving or frozenset(),
            getattr(connector_output, "invalid_block_ids", None) or frozenset(),
            time.monotonic(),
        )
        if side.refusal is not None:
            self._say("the KV agent does not serve this engine: %s", side.refusal)

    @kept_from_engine(lambda: (False, None))
    def request_finished(self, request: Any, *args: Any, **kwargs: Any) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is not None and self._requests.pop(request.request_id, None) is not None:
            self._scheduler.finished(request.request_id)
        return False, None

    request_finished_all_groups = request_finished

    # ---- worker ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> None:
        if (side := self._worker) is None:
            return
        try:
            facts = compat.cache_facts(self._config, self._caches, kv_caches)
            side.register(copies_for(compat.distinct(kv_caches.values())), facts.part_bytes)
        except ValueError as reason:
            # The scheduler's side hears no facts, and so never offers anything.
            compat.logger.warning("HomingConnector is off: %s", reason)
            return
        self._facts = facts

    def get_handshake_metadata(self) -> Any:
        return self._facts

    @kept_from_engine(lambda: None)
    def start_load_kv(self, forward_context: Any, *args: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.start(self._get_connector_metadata().orders, time.monotonic())

    def wait_for_layer_load(self, layer_name: str, *args: Any, **kwargs: Any) -> None:
        """Loads are asynchronous: what a step reads is there before it."""

    def save_kv_layer(self, layer_name: str, *args: Any, **kwargs: Any) -> None:
        """Blocks are saved whole, in `wait_for_save`."""

    @kept_from_engine(lambda: None)
    def wait_for_save(self, *args: Any, **kwargs: Any) -> None:
        if self._worker is not None and self.has_connector_metadata():
            self._worker.save(self._get_connector_metadata().orders.saves)

    def get_finished(
        self, finished_req_ids: set[str], *args: Any, **kwargs: Any
    ) -> tuple[set[str] | None, set[str] | None]:
        if (side := self._worker) is None:
            return None, None
        now = time.monotonic()
        try:
            side.advance(now)
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the engine
            self._fault("advance")
            side.give_up(now)
        loaded, missing = side.finished()
        self._missing |= missing
        return None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        missing, self._missing = self._missing, set()
        return missing

    @kept_from_engine(lambda: None)
    def build_connector_worker_meta(self) -> Any:
        return None if self._worker is None else ReadyWorkers(int(self._worker.ready))

    # ---- both ----

    def get_kv_connector_stats(self) -> Any:
        figures = self._counting.take()
        return None if figures is None else HomingStats(data=figures)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return HomingStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, *args: Any, **kwargs: Any) -> Any:
        return HomingMetrics(*args, **kwargs)

    @kept_from_engine(lambda: None)
    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()

    def reset_cache(self) -> bool | None:
        """What was saved stays valid: it is known by its tokens and by the weights that computed it."""
        return True

    def _prompt(self, request: Any) -> Prompt:
        loadable = max(0, request.num_tokens - 1) // self._shape.block_size
        return Prompt(
            request.request_id,
            compat.tenant_of(request),
            self._hashes(request)[:loadable],
            compat.hint_of(request),
            compat.session_of(request),
        )

    def _hashes(self, request: Any) -> compat.Hashes:
        return compat.Hashes(request, self._shape.block_size, self._shape.hash_block_size)

    def _progress(self, output: Any) -> list[Progress]:
        return [
            Progress(
                name,
                compat.computed_after(output, known.request, scheduled) // self._shape.block_size,
                self._hashes(known.request),
            )
            for name, scheduled in output.num_scheduled_tokens.items()
            if (known := self._requests.get(name)) is not None
        ]

    def _namespace(self) -> Namespace:
        if self._facts is None:
            raise LookupError("no worker has said what its caches are")
        return compat.namespace(self._config, self._caches, self._shape, self._facts, self._digests)

    def _connect_scheduler(self, namespace: Namespace) -> SchedulerClient:
        ahead = self._settings.slots_ahead or 2 * self._shape.tokens_a_step // self._shape.block_size
        return SchedulerClient(
            self._settings.agent,
            engine=self._engine,
            namespace=namespace,
            part_bytes=namespace.block_bytes // self._shape.ranks,
            slots_wanted=max(8, ahead),
            answer_s=self._settings.answer_s,
        )

    def _connect_worker(self, namespace: Namespace) -> WorkerClient:
        return WorkerClient(
            self._settings.agent,
            engine=self._engine,
            rank=self._rank,
            namespace=namespace,
            part_bytes=namespace.block_bytes // self._shape.ranks,
        )

    def _fault(self, where: str) -> None:
        self._counting.add("faults", label=where)
        self._say("an error in %s was answered by computing", where, with_trace=True)

    def _say(self, text: str, what: str, *, with_trace: bool = False) -> None:
        """Log it, once a minute for each `what`."""
        now = time.monotonic()
        if now - self._said.get(what, float("-inf")) < _SAY_EVERY_S:
            return
        self._said[what] = now
        compat.logger.warning("HomingConnector: " + text, what, exc_info=with_trace)
