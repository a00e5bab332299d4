"""The paired turns of a replay: prompts with prefill replicas, and what such and decode replicas keep.

Carries out what the engine decides, as the data plane does with replicas that are there: the prompt is
computed, decode fetches it, and the session's next prompt fetches back what decode holds. Blocks have names
here instead of tokens, so the ids that two prompts are compared by are made of those. The engines' side is
that of the simulated replica (`simulator/handoffs`): a fetch begins when the request comes, prefill replicas
decline what they cannot fetch whole, decode computes it.

Knows the network's transfers and its own jobs; what else the replicas do is the fleet's.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from router.base.ids import ReplicaId
from router.core.engine import Engine
from router.core.leg import Leg
from router.core.observe import Outcome, Usage
from router.core.pairbook import PairEnd, Unclaimed, Unreturned
from router.core.plan import PairRules
from router.core.token_ids import TokenIds
from router.simulator.model import Finished, FirstToken, Job
from router.simulator.replay.figures import Measured
from router.simulator.replay.network import Arrival, Network, whole_blocks
from router.simulator.replay.stage import Alarm, Kept, Replica, Running, Stage
from router.simulator.settings import ReplicaSettings

# How often claims whose time is up are forgotten.
_EXPIRE_EVERY_S: Final = 1.0


class _Prompt:
    """A turn's prompt, until it is computed."""

    __slots__ = ("cached_tokens", "failed", "leg", "legs", "outcomes", "replica", "running")

    def __init__(self, running: Running) -> None:
        self.running = running
        self.legs = 0
        self.leg: Leg | None = None
        self.replica: Replica | None = None
        self.outcomes: tuple[Outcome, ...] = ()
        self.failed: tuple[ReplicaId, ...] = ()
        self.cached_tokens = 0


class _Fetch:
    """Blocks on their way to a replica."""

    __slots__ = ("kept", "model", "target")

    def __init__(self, kept: Kept, target: Replica) -> None:
        self.kept = kept
        self.target = target
        self.model = target.model


class Pairs:
    """All pairs of one fleet, in virtual time. Times are seconds."""

    def __init__(
        self,
        engine: Engine,
        settings: ReplicaSettings,
        replicas: Mapping[ReplicaId, Replica],
        measured: Measured,
        stage: Stage,
        network: Network,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._network = network
        self._replicas = replicas
        self._measured = measured
        self._stage = stage
        self._block = settings.block_size
        self._block_bytes = settings.block_size * settings.kv_bytes_per_token
        self._prompts: dict[str, _Prompt] = {}
        """Those with a prefill replica, by its job."""
        self._fetches: dict[str, _Fetch] = {}
        """By the job that waits for it."""
        self._kept: dict[str, Kept] = {}
        self._told_in_streams = False
        self._expired_at = -inf

    # --- the router's side --------------------------------------------------------------------------

    def is_whole(self, *, last: bool) -> bool:
        """Whether decode is asked for a whole answer to a turn that comes now."""
        return self._rules.whole_streams and not last and not self._told_in_streams

    def is_one_way(self, *, last: bool) -> bool:
        """Whether its stream will leave nothing for the next turn."""
        return not self._told_in_streams and not self.is_whole(last=last)

    def begin(self, running: Running, now: float) -> bool:
        """Have the prompt of a turn computed that is to be had by a pair. False for any other."""
        if running.ticket.decision.pair is None:
            return False
        self._give(_Prompt(running), now)
        return True

    def _give(self, prompt: _Prompt, now: float) -> None:
        """Give a prompt to a prefill replica, or to decode where none can take it."""
        running, legs = prompt.running, self._engine.legs
        while True:
            leg = legs.begin(running.ticket, now, failed=prompt.failed)
            if leg is None:
                self._engine.pairs.ends[PairEnd.ALONE] += 1
                self._stage.answer(self._stage.next_name(), running, 0, now, keep=False)
                return
            leg.number = prompt.legs
            prompt.legs += 1
            prompt.leg = leg
            replica = self._replicas[leg.member.id]
            if replica.dead:
                leg.end(Outcome.CONNECT_FAILED, now)
                if not self._may_go_on(prompt, replica, Outcome.CONNECT_FAILED, now):
                    return
            elif self._submit(prompt, leg, replica, now):
                return
            else:
                self._decline(leg, Outcome.SERVER_ERROR, now)

    def _submit(self, prompt: _Prompt, leg: Leg, replica: Replica, now: float) -> bool:
        """Let a replica compute it. False where it cannot fetch what it was sent."""
        running = prompt.running
        claim, legs = leg.claim, self._engine.legs
        tokens, kept, deadline = 0, None, inf
        if claim is None:
            legs.nothing_back(leg)
        else:
            tokens = legs.fetch_back(leg, self._prompt_ids(running), 0)
            if tokens:
                kept = self._kept.get(claim.offer.decode())
                if kept is None:
                    return False
        name = self._stage.next_name()
        prompt.replica = replica
        self._prompts[name] = prompt
        # Of less than that an engine lets go without fetching it.
        blocks = tokens // self._block if tokens >= self._settings.recompute_threshold else 0
        if leg.patience_s is not None:
            deadline = now + leg.patience_s
            self._stage.remind(Alarm(name, None), deadline)
        pulled = self._fetch(name, kept, replica, running.prompt, blocks, now, deadline)
        if pulled:
            self._measured.pulled += 1
        job = Job(name, running.player.step.prompt_tokens, 1, running.prompt, pulled, keep=True)
        replica.model.submit(job, now)
        self._stage.set_wake(replica, now)
        self._stage.set_watch(replica, now)
        return True

    def _decline(self, leg: Leg, outcome: Outcome, now: float) -> None:
        """A replica could not fetch. The same one may well compute."""
        leg.end(outcome, now)
        self._engine.pairs.unreturned[Unreturned.DECLINED] += 1

    def _may_go_on(self, prompt: _Prompt, replica: Replica, outcome: Outcome, now: float) -> bool:
        """Whether another replica may have a prompt that one has failed. If not, its client is told."""
        prompt.outcomes += (outcome,)
        prompt.failed += (replica.id,)
        if self._engine.may_retry(prompt.outcomes, now):
            return True
        self._engine.pairs.ends[PairEnd.FAILED] += 1
        # The replica that was to answer never had the turn.
        prompt.running.ticket.end(Outcome.CANCELLED, now)
        self._stage.ask_again(prompt.running, now)
        return False

    def answered(self, name: str, running: Running, now: float) -> None:
        """The answer to a paired turn is complete: what decode keeps of it is the next turn's to fetch."""
        unclaimed = self._engine.pairs.unclaimed
        if not running.handed:
            return
        if not self._settings.two_way:
            unclaimed[Unclaimed.NOT_OFFERED if running.whole else Unclaimed.STREAMED] += 1
            return
        step, ticket = running.player.step, running.ticket
        replica = self._replicas[ticket.decision.replica]
        self._keep(name, replica, now + self._settings.decode_pin_s)
        streams_offer = self._settings.streams_offer
        if not running.whole and not streams_offer:
            unclaimed[Unclaimed.STREAMED] += 1
            return
        # The last token is sampled and never computed.
        held = step.prompt_tokens + step.output_tokens - 1
        if running.whole:
            ids = self._ids(running.hashes, held)
        else:
            # A stream does not tell of which tokens it is made.
            self._told_in_streams = True
            ids = self._prompt_ids(running)
        held_tokens = -(-held // self._block) * self._block
        self._engine.legs.keep(ticket, name.encode(), ids, self._block, held_tokens, 0, now)

    def sweep(self, now: float) -> None:
        """Let go of what nobody will fetch."""
        claims, legs = self._engine.pairs.claims, self._engine.legs
        if now >= self._expired_at + _EXPIRE_EVERY_S:
            self._expired_at = now
            claims.expire(now)
        while (claim := claims.next_dropped(now)) is not None:
            if legs.release_by(claim.model) is not None:
                self._let_go(claim.offer.decode(), now)

    # --- the replicas' side -------------------------------------------------------------------------

    def heard(self, event: FirstToken | Finished, now: float) -> bool:
        """Take what a replica has done of a prompt. False where the event is not about one."""
        prompt = self._prompts.get(event.id)
        if prompt is None:
            return False
        if isinstance(event, FirstToken):
            prompt.cached_tokens = event.cached_tokens
            return True
        del self._prompts[event.id]
        running, leg, replica = prompt.running, prompt.leg, prompt.replica
        assert leg is not None
        assert replica is not None
        step = running.player.step
        leg.end(Outcome.COMPLETED, event.at, Usage(step.prompt_tokens, 1, prompt.cached_tokens))
        running.cached_tokens = prompt.cached_tokens
        running.handed = True
        kept = self._keep(event.id, replica, now + self._settings.prefill_lease_s)
        target = self._replicas[running.ticket.decision.replica]
        if target.dead:
            # Who has the turn next is sent another request's blocks: these are kept for nobody.
            self._stage.move_on(running, now)
            return True
        name = self._stage.next_name()
        blocks = step.prompt_tokens // self._block
        pulled = self._fetch(name, kept, target, running.prompt, blocks, now, inf)
        self._stage.answer(name, running, pulled, now, keep=self._settings.two_way)
        return True

    def arrived(self, arrival: Arrival, now: float) -> None:
        """A transfer has ended, with all that was sent for or with less."""
        fetch = self._fetches.pop(arrival.name)
        target, kept = fetch.target, fetch.kept
        came = whole_blocks(arrival.size, self._block_bytes)
        missing = whole_blocks(arrival.wanted, self._block_bytes) - came
        prompt = self._prompts.get(arrival.name)
        if prompt is not None:
            self._measured.pulled_tokens += came * self._block
        self._give_back(kept, now)
        if target.dead or target.model is not fetch.model:
            return
        if prompt is None or not missing:
            target.model.arrived(arrival.name, missing, now)
            self._stage.set_wake(target, now)
        else:
            gone = kept.replica.model is not kept.model or kept.replica.dead
            self._give_up(arrival.name, Outcome.SERVER_ERROR if gone else Outcome.TIMEOUT, now)

    def reminded(self, alarm: Alarm, now: float) -> None:
        """A replica has kept blocks for as long as it does, or a prompt that fetches has had its time."""
        if alarm.kept is None:
            self._give_up(alarm.job, Outcome.TIMEOUT, now)
        elif self._kept.get(alarm.job) is alarm.kept:
            self._let_go(alarm.job, now)

    def _give_up(self, job: str, outcome: Outcome, now: float) -> None:
        """A replica cannot fetch, or not in time. Nothing happens where it has computed the prompt."""
        prompt = self._prompts.get(job)
        if prompt is None:
            return
        leg, replica = prompt.leg, prompt.replica
        assert leg is not None
        assert replica is not None
        aborted = replica.model.abort(job, now)
        self._stage.set_wake(replica, now)
        if not aborted:
            return
        del self._prompts[job]
        if leg.claim_used:
            self._decline(leg, outcome, now)
        else:
            leg.end(outcome, now)
            if not self._may_go_on(prompt, replica, outcome, now):
                return
        self._give(prompt, now)

    def died(self, replica: Replica, now: float) -> None:
        """A replica's process is gone: it keeps nothing, and others compute the prompts that it had."""
        for job in [job for job, kept in self._kept.items() if kept.replica is replica]:
            del self._kept[job]
        orphans = [(job, prompt) for job, prompt in self._prompts.items() if prompt.replica is replica]
        for job, _ in orphans:
            del self._prompts[job]
        for _, prompt in orphans:
            assert prompt.leg is not None
            prompt.leg.end(Outcome.DIED, now)
            if self._may_go_on(prompt, replica, Outcome.DIED, now):
                self._give(prompt, now)

    def _fetch(
        self,
        name: str,
        kept: Kept | None,
        target: Replica,
        hashes: Sequence[int],
        blocks: int,
        now: float,
        deadline: float,
    ) -> int:
        """Begin to bring the first `blocks` blocks of a prompt to a replica, for the job of that name, as far
        as they are not there. Returns how many leading ones will then lie there; 0 = nothing comes."""
        if kept is None:
            return 0
        here = target.model.cache.match(hashes, blocks)
        lacking = blocks - here.device - here.host
        # What is being read is kept until it is.
        del self._kept[kept.job]
        if lacking <= 0:
            self._give_back(kept, now)
            return 0
        self._fetches[name] = _Fetch(kept, target)
        size = lacking * self._block_bytes
        self._network.start(name, kept.replica.id, target.id, size, now, deadline)
        self._stage.set_network(now)
        return blocks

    def _keep(self, job: str, replica: Replica, until: float) -> Kept:
        kept = self._kept[job] = Kept(job, replica)
        self._stage.remind(Alarm(job, kept), until)
        return kept

    def _let_go(self, job: str, now: float) -> None:
        """Have a replica keep blocks no longer. Nothing happens where it does not, or where they are read."""
        kept = self._kept.pop(job, None)
        if kept is not None:
            self._give_back(kept, now)

    def _give_back(self, kept: Kept, now: float) -> None:
        replica = kept.replica
        if replica.model is kept.model and kept.model.let_go(kept.job, now):
            self._stage.set_wake(replica, now)
            # It has more room than it was last seen to have.
            self._stage.set_watch(replica, now)

    # --- ids ----------------------------------------------------------------------------------------

    def _prompt_ids(self, running: Running) -> TokenIds:
        return self._ids(running.prompt, running.player.step.prompt_tokens)

    def _ids(self, hashes: Sequence[int], tokens: int) -> TokenIds:
        """Ids for so many tokens in blocks of these names: a block's first is its name, and what is beyond
        the last named one is like nothing but itself."""
        named = min(len(hashes), tokens // self._block)
        rest = b"0," * (self._block - 1)
        text = b"".join([b"%d,%b" % (name, rest) for name in hashes[:named]])
        return TokenIds(text + b"1," * (tokens - named * self._block), tokens)

    @property
    def _rules(self) -> PairRules:
        return self._engine.legs.rules(0)
