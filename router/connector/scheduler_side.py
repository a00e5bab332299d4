"""The connector in the scheduler: what to load, what to save, and the agent's answers to both.

Called by the engine's own thread, on the way of every request: nothing here waits, dials, resolves or reads a
file. Time is an argument.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from router.connector.figures import Counting
from router.connector.loads import LoadOrder
from router.connector.offers import Offers, Stage
from router.connector.orders import Orders, SaveOrder
from router.connector.rate import PrefillRate
from router.connector.saves import Saves
from router.connector.settings import Settings
from router.kv.keys import ROOT, BlockHash, Namespace
from router.kv.local import NewBlock, SchedulerClient

_LEAST_DEADLINE_S: Final = 0.050
"""Even a short load is given so long: below, the machine's own jitter would decide."""
_FIGURES_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request, as far as the connector cares."""

    request: str
    tenant: str
    hashes: Sequence[BlockHash]
    """Of the blocks that may be loaded: all full ones but the one that holds the prompt's last token."""
    hint: dict[str, Any] | None
    session: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A running request at a step."""

    request: str
    computed: int
    """Full blocks that are certain once the step has run."""
    hashes: Sequence[BlockHash]
    """Of all blocks whose tokens are known. It may be a view: looked at once, in this step."""


class SchedulerSide:
    """All requests of one engine."""

    def __init__(
        self,
        settings: Settings,
        connect: Callable[[Namespace], SchedulerClient],
        *,
        block_size: int,
        counting: Counting,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._block_size = block_size
        self._counting = counting
        min_blocks = -(-settings.min_tokens // block_size)
        self._offers = Offers(min_blocks=min_blocks, headroom=settings.headroom)
        self._saves = Saves()
        self._rate = PrefillRate()
        self._sessions: dict[str, str] = {}
        self._loading: dict[str, int | None] = {}
        self._orders: list[LoadOrder] = []
        self._client: SchedulerClient | None = None
        self._namespace: Namespace | None = None
        self._step: tuple[float, int] | None = None
        self._figures_due = float("-inf")
        self._can_save = False

    @property
    def refusal(self) -> str | None:
        """Why the agent does not serve this engine."""
        return None if self._client is None else self._client.refusal

    def meet(self, namespace: Namespace) -> None:
        """The engine knows what its blocks are."""
        if self._client is None:
            self._namespace = namespace
            self._client = self._connect(namespace)

    def arrive(self, prompt: Prompt, now: float) -> None:
        """A new request. Again is the same as once."""
        client = self._client
        if client is None or self._offers.stage(prompt.request) is not None:
            return
        client.poll(now)
        self._saves.arrive(prompt.request, prompt.tenant)
        self._sessions[prompt.request] = prompt.session
        if self._offers.arrive(prompt.request, prompt.tenant, prompt.hashes):
            client.ask(prompt.request, prompt.tenant, prompt.hashes, hint=prompt.hint, now=now)
            self._counting.add("asks")

    def offer(self, prompt: Prompt, *, computed: int, room: int | None, now: float) -> int | None:
        """Blocks to load beyond `computed`; `None`: not known yet."""
        client = self._client
        if client is None:
            return 0
        self.arrive(prompt, now)
        request = prompt.request
        client.poll(now)
        before = self._offers.stage(request)
        found = client.answer(request)
        verdict = self._offers.offer(request, computed=computed, found=found, room=room, now=now)
        if verdict.renew:
            client.forget(request)
            client.ask(request, prompt.tenant, prompt.hashes, hint=prompt.hint, now=now)
        elif before in (Stage.ASKED, Stage.OFFERED) and self._offers.stage(request) is Stage.SPENT:
            client.forget(request)
            self._counting.add("offers", label=verdict.reason)
        elif before is Stage.ASKED and verdict.blocks:
            self._counting.add("offers", label="offered")
            self._counting.add("offered_blocks", verdict.blocks)
        if found is not None and found.blocks:
            self._saves.belongs(request, found.tenant)
        return verdict.blocks

    def allocated(self, request: str, count: int, block_ids: Sequence[int], now: float) -> None:
        """The scheduler gave the request these blocks, and waits until `count` of them are loaded.

        Since it waits it must be told an end: every way through here leads to an order for the workers.
        """
        before = self._offers.stage(request)
        order = self._offers.begin(request, count, block_ids)
        client = self._client
        if count == 0:
            if before is Stage.OFFERED and client is not None:
                client.forget(request)
            return
        if order is None:
            self._counting.add("faults", label="unoffered-load")
            self.compute(request, tuple(block_ids)[-count:])
            return
        found = self._offers.found(request)
        stall_s = (found and found.stall_s) or self._settings.stall_s
        length = len(order.block_ids)
        deadline_s = self._deadline_s((found and found.deadline_s) or self._settings.deadline_s, length)
        load = None
        if client is not None:
            load = client.load(
                request, first=order.first, count=length, stall_s=stall_s, deadline_s=deadline_s, now=now
            )
        self._loading[request] = load
        self._orders.append(LoadOrder(request, load, order.block_ids, deadline_s))

    def compute(self, request: str, block_ids: tuple[int, ...]) -> None:
        """Nothing comes for these blocks, which the scheduler waits for: let it compute them."""
        self._orders.append(LoadOrder(request, None, block_ids, 0.0))

    def changed(self, request: str, block_ids: Sequence[int], *, anew: bool) -> None:
        """The schedule gave a request blocks: more, or all of them."""
        if anew:
            self._saves.replace(request, block_ids)
        else:
            self._saves.extend(request, block_ids)

    def lose_track(self) -> None:
        """A step's changes may not all have been told: nobody knows any more which block is which, and of the
        requests that run now nothing more is saved."""
        self._saves = Saves()

    def workers_ready(self, is_ready: bool) -> None:
        """Whether every worker can save. One that cannot would leave its slots taken and never written."""
        self._can_save = is_ready

    def orders(self, progress: Sequence[Progress], tokens: int, now: float) -> Orders:
        """A step's orders, when it computes `tokens` in all."""
        client = self._client
        self._step = (now, tokens) if tokens else None
        saves: list[SaveOrder] = []
        if client is not None:
            client.poll(now)
            if client.connected and self._can_save:
                for one in progress:
                    self._save(one, client, saves)
        return self.bare_orders(saves)

    def bare_orders(self, saves: Sequence[SaveOrder] = ()) -> Orders:
        """A step's orders: the loads that nobody has been told of yet, and these saves."""
        loads, self._orders = tuple(self._orders), []
        return Orders(self._namespace, loads, tuple(saves))

    def stepped(self, finished: Set[str], missing: Set[int], now: float) -> None:
        """What the workers report after a step."""
        if self._step is not None:
            began, tokens = self._step
            self._rate.observe(tokens, now - began)
            self._step = None
        self._offers.failed(missing, now)
        for request in finished:
            self._loading.pop(request, None)
            places = self._offers.loaded(request)
            if places is not None and self._client is not None:
                self._saves.loaded(request, places)
                self._client.forget(request)
        self._show(now)

    def finished(self, request: str) -> None:
        """The request is over, at whatever point."""
        load = self._loading.get(request)
        self._offers.end(request)
        self._sessions.pop(request, None)
        if lost := self._saves.end(request):
            self._counting.add("lost_blocks", lost)
        if self._client is not None:
            if load is not None:
                self._client.cancel(load)
            self._client.finished(request)

    def close(self) -> None:
        """The engine is stopping."""
        if self._client is not None:
            self._client.close()

    def _deadline_s(self, granted: float, blocks: int) -> float:
        computing = self._rate.seconds(blocks * self._block_size)
        if computing is None:
            return granted
        return min(granted, max(_LEAST_DEADLINE_S, self._settings.deadline_share * computing))

    def _save(self, progress: Progress, client: SchedulerClient, saves: list[SaveOrder]) -> None:
        request = progress.request
        tenant = self._saves.tenant(request)
        if tenant is None:
            return
        found = self._offers.found(request)
        system_blocks = 0 if found is None else found.system_blocks
        zones: dict[bool, list[NewBlock]] = {True: [], False: []}
        for full in self._saves.full(
            request, computed=progress.computed, hashes=progress.hashes, held=client.holds
        ):
            slots = client.take_slots(1)
            if not slots:
                break
            parent = progress.hashes[full.place - 1] if full.place else ROOT
            zones[full.place < system_blocks].append(NewBlock(slots[0], full.hash, parent))
            saves.append(SaveOrder(full.block_id, slots[0]))
        session = self._sessions.get(request, "")
        for is_system, blocks in zones.items():
            client.store(request, tenant, "system" if is_system else "session", blocks, session=session)

    def _show(self, now: float) -> None:
        client = self._client
        if client is None or now < self._figures_due:
            return
        self._figures_due = now + _FIGURES_EVERY_S
        self._counting.show("agent_connected", float(client.connected))
        for figure, value in client.stats.items():
            self._counting.show("agent", value, label=figure)
