"""Runs scripts on the simulated replica's model, step by step, and notes what is noted of a real engine."""

from loadtest.calibrate.script import Limits, Record, Script, Step, Submit, Texts, block_hashes
from router.simulator.model import EngineModel, Event, Finished, FirstToken, Job, Preempted
from router.simulator.settings import ReplicaSettings


class SimulatedScheduler:
    """The model as a scheduler: time passes from one step to the next."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._chunks: list[tuple[int, int]] = []
        settings = ReplicaSettings(
            block_size=limits.block_size,
            kv_blocks=limits.blocks,
            batch_tokens=limits.batch_tokens,
            max_num_seqs=limits.max_num_seqs,
        )
        self._model = EngineModel(settings, prefill_cost=self._cost)
        self._texts = Texts()
        self._now = 0.0

    def run(self, script: Script) -> Record:
        steps: list[Step] = []
        for tick in script.ticks:
            for name in tick.aborts:
                self._model.abort(name, self._now)
            for submit in tick.submits:
                self._submit(submit)
            self._step(steps)
        while self._model.in_flight:
            self._step(steps)
        self._settle(steps, self._model.advance(self._now))
        counters = self._model.counters
        return Record(tuple(steps), counters.queries, counters.hits)

    def _submit(self, submit: Submit) -> None:
        tokens = list(self._texts.tokens([*submit.prompt, submit.reply]))
        hashes = block_hashes(tokens, self._limits.block_size)
        self._model.submit(Job(submit.id, submit.prompt_tokens, submit.reply.tokens, hashes), self._now)

    def _step(self, steps: list[Step]) -> None:
        """Do one step. What came of it is known, and filled in, when the next begins."""
        model = self._model
        self._chunks.clear()
        events = model.advance(self._now)
        self._settle(steps, events)
        stats = model.stats(self._now)
        used = model.cache.used
        end = model.next_event_time()
        if end is not None:
            self._now = end
        # A look at a step's end finishes it and begins none.
        model.stats(self._now)
        steps.append(
            Step(
                stats.running,
                stats.waiting,
                used,
                tuple(sorted(self._chunks)),
                tuple(event.id for event in events if isinstance(event, Preempted)),
                (),
                (),
                model.cache.used,
            )
        )

    def _settle(self, steps: list[Step], events: list[Event]) -> None:
        if steps:
            steps[-1] = steps[-1]._replace(
                first=tuple(sorted((e.id, e.cached_tokens) for e in events if isinstance(e, FirstToken))),
                finished=tuple(sorted(event.id for event in events if isinstance(event, Finished))),
            )

    def _cost(self, behind: int, tokens: int) -> float:
        self._chunks.append((behind, tokens))
        return 1.0
