"""Builds a router from its settings and runs it: the one place that knows every part."""

import logging
import socket
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import yaml

from router.base.clock import Clock, SystemClock
from router.base.ids import ReplicaId
from router.base.stamps import Stamps, stamps_of
from router.base.system import open_files
from router.controlplane.admin import AdminServer, AdminSources
from router.controlplane.certificate import certificate_watch
from router.controlplane.discovery import Discovery, Source
from router.controlplane.hearsay import Hearsay
from router.controlplane.insight import InsightSources
from router.controlplane.kv_agents import AgentAddress, KvAgents
from router.controlplane.kv_feed import KvFeeds
from router.controlplane.place import Place
from router.controlplane.prefetch import Prefetcher
from router.controlplane.probe import Prober, ProbeTiming
from router.controlplane.reload import Read, Reloader
from router.controlplane.roster import Listed
from router.controlplane.sources import build_sources, list_config
from router.controlplane.succession import ADMIN, DATA, EngineKeeper, Succession
from router.controlplane.watch import FileWatch
from router.core.chain_watch import ChainWatch
from router.core.engine import Engine
from router.core.holdings import Holdings
from router.core.model import Model
from router.core.plan import Plan
from router.core.pullbook import PullBook
from router.core.session import Session
from router.core.shadow import Mirror, Shadow
from router.dataplane.hints import HintWriter
from router.dataplane.limits import Limits
from router.dataplane.routing import Routing
from router.dataplane.server import DataPlane
from router.questions import Questions
from router.settings.advice import notices_of
from router.settings.build import build_plan, build_plans, build_routes
from router.settings.compare import Settings
from router.settings.config import RouterConfig
from router.settings.credentials import Secrets
from router.settings.fields import Address, parse_address
from router.settings.load import Loaded
from router.settings.sources import files_of
from router.telemetry.breaks import breaks_overview, session_breaks
from router.telemetry.control import discovery_metrics, feed_metrics, reload_metrics
from router.telemetry.kv import kv_metrics, pull_metrics
from router.telemetry.metrics import Metrics, Section
from router.telemetry.pairs import pair_metrics
from router.telemetry.recording import Recording
from router.telemetry.shadow import shadow_fields, shadow_metrics

_log = logging.getLogger(__name__)

# Without a secret of the operator's, routers side by side must still place alike, and a restarted one as
# before, so this is fixed, and public.
_NO_SECRET: Final = b"homing: no secret is configured"

# A probe that hangs must not hold up the start longer than it takes to be given up: a replica that has not
# answered so long after `probe.timeout` gets its traffic as soon as it does.
_FIRST_ROUND_MARGIN_S: Final = 0.5

# Files that are open besides the connections of turns: ports, probes, the loop's own.
_OWN_FILES: Final = 64


class Router:
    """A router, assembled. `start`, then `close`."""

    def __init__(
        self,
        loaded: Loaded[RouterConfig],
        secrets: Secrets,
        *,
        clock: Clock | None = None,
        rng: Random | None = None,
        read: Read | None = None,
        environ: Mapping[str, str] | None = None,
        look_every_s: float = 2.0,
        place: Place | None = None,
    ) -> None:
        """`place`: of a worker, one of several processes that serve the same clients; `None` = it is alone.

        `read` reads the settings anew; without it a reload finds nothing changed. Files are looked at
        every `look_every_s` seconds, and taken up when they have changed and two looks find them the same.
        """
        config = loaded.value
        self.config = config
        self.clock = clock if clock is not None else SystemClock()
        self.secrets = secrets
        settings = Settings(loaded, secrets, environ if environ is not None else {})
        self.reloader = Reloader(
            settings, read if read is not None else lambda _: settings, self._apply, self.clock
        )
        self.notices = notices_of(loaded, secrets)
        self._policy_text = _policy_text(loaded)
        self._rng = rng if rng is not None else Random()
        self._look_every_s = look_every_s
        self._probing = False
        self._place = place
        self._parts = place.of if place is not None else 1
        plans = build_plans(loaded, self._parts)
        self.hearsay = Hearsay(self.clock) if place is not None else None
        self.chains = ChainWatch()
        secret = secrets.secret or _NO_SECRET
        self.recording = recording = Recording(
            config.telemetry,
            self.clock,
            secret=secret,
            url_of=self._url_of,
            headers=secrets.otlp_headers,
            tls=secrets.otlp_tls,
            worker=place.number if place is not None else 0,
            workers=self._parts,
        )
        self.holdings = Holdings()
        self.shadow = Shadow(build_plan(loaded.shadow.value)) if loaded.shadow is not None else None
        if self.shadow is not None:
            recording.observer.add(self.shadow)
        if self.hearsay is not None:
            recording.observer.add(self.hearsay)
        self._prefetches = False
        pullbook = PullBook(plans[0].pull)
        self.engine = Engine(
            plans,
            rng=self._rng,
            observer=recording.observer,
            pullbook=pullbook,
            holdings=self.holdings,
            on_detach=lambda error: _log.error(
                "telemetry failed and is detached; routing goes on", exc_info=error
            ),
            on_stored=self.hearsay.stored if self.hearsay is not None else None,
        )
        if self.hearsay is not None:
            self.hearsay.hearing = self.engine.hearing
        self.discovery = Discovery(self.clock, self._set_replicas, self.engine.has_turns)
        self.feeds = KvFeeds(self.engine)
        # Whoever tells the engine of replicas tells the shadow, too.
        self._fleet = (
            Mirror(self.engine, self.shadow, _shadow_failed) if self.shadow is not None else self.engine
        )
        self.routing = _routing(plans, settings)
        self.dataplane = DataPlane(
            self.engine,
            self.routing,
            clock=self.clock,
            limits=_limits(config, self._parts),
            access=secrets.keys,
            tenant_header=config.access.tenant_header,
            tls=secrets.tls.context if secrets.tls is not None else None,
            chains=self.chains,
            hints=_hints(config, secrets, plans),
            traces=recording.tracing,
            overhead=recording.counters.overhead,
        )
        self.questions = Questions(
            self.engine, self.dataplane, self.chains, self.clock, lambda: self.secrets.keys
        )
        self.kv_agents = KvAgents(self.engine, self.clock, self._rng, secret=secret)
        self.prefetcher = Prefetcher(
            self.engine, self.kv_agents, lambda tenant: self.routing.label_of(tenant)
        )
        sections: list[Section] = [
            partial(reload_metrics, self.reloader),
            partial(discovery_metrics, self.discovery.status),
            partial(kv_metrics, self.kv_agents, self.prefetcher),
            partial(pull_metrics, pullbook, recording.counters.pulls, self.clock),
            partial(feed_metrics, self.feeds.status),
            lambda build: pair_metrics(self.engine.pairs, self.dataplane.pairs, build),
            *recording.sections,
        ]
        if self.shadow is not None:
            sections.append(partial(shadow_metrics, self.shadow))
        metrics = Metrics(
            recording.counters,
            self.engine,
            self.dataplane,
            self.clock,
            chains=self.chains,
            sections=sections,
        )
        self.admin = AdminServer(
            self._fleet,
            self.clock,
            AdminSources(
                metrics=metrics.text,
                policy=lambda: self._policy_text,
                explain=self.questions.explain,
                reloads=self.reloader,
                insight=InsightSources(
                    decisions=recording.recent.newest,
                    decision=recording.recent.find,
                    history=recording.history,
                    timeline=recording.timelines.of,
                    moves=recording.moves.fields,
                    breaks=lambda limit, now: breaks_overview(self.chains, limit, now),
                    session=lambda key, now: session_breaks(self.chains, key, now),
                ),
                discovery=self.discovery.status,
                feeds=self.feeds.status,
                ended=self._let_go,
                agents=self.kv_agents.faults,
                breakers=lambda: pullbook.breakers(self.clock.now()),
                policies=lambda: [plan.name for plan in self.engine.plans],
                shadow=partial(shadow_fields, self.shadow) if self.shadow is not None else None,
                stopping=lambda: self.dataplane.stopping,
                listening=lambda: self.dataplane.listening,
            ),
            token=secrets.admin_token,
            allowed_hosts=config.admin.hosts,
        )
        self._prober = Prober(
            self._fleet,
            self.clock,
            self._rng,
            on_silent=self.dataplane.give_up_on,
            on_looked=self.dataplane.dispatch_soon,
        )
        self._watches = (
            [certificate_watch(secrets.tls, every_s=look_every_s)] if secrets.tls is not None else []
        )
        if read is not None:
            self._watches.append(self._settings_watch(look_every_s))
        self.succession = self._succession(loaded.folder, secret)
        self.discovery.list_config(list_config(config, secrets))

    def _url_of(self, replica: ReplicaId) -> str | None:
        try:
            return self.engine.spec(replica).url
        except KeyError:
            return None

    def _succession(self, folder: Path, secret: bytes) -> Succession:
        if self._place is not None:
            # Its parent sees to all else.
            return Succession(
                EngineKeeper(self.engine.recollection, self.clock, secret),
                recall_from=Path(self._place.recall_from),
                leave_at=Path(self._place.leave_at),
                handover_path=None,
                addresses={},
                listeners=dict,
            )
        written = self.config.restart
        snapshot = folder / written.snapshot if written.snapshot is not None else None
        return Succession(
            EngineKeeper(self.engine.recollection, self.clock, secret),
            recall_from=snapshot,
            leave_at=snapshot,
            handover_path=folder / written.handover if written.handover is not None else None,
            addresses={DATA: str(self.config.listen), ADMIN: str(self.config.admin.listen)},
            listeners=lambda: {DATA: self.dataplane.listeners(), ADMIN: self.admin.listeners()},
        )

    def _settings_watch(self, every_s: float) -> FileWatch:
        def look() -> Stamps:
            return stamps_of(files_of(self.reloader.as_read.loaded))

        return FileWatch(
            "the settings",
            look,
            lambda: self.reloader.reload("a file was replaced"),
            known=look(),
            every_s=every_s,
        )

    def _apply(self, settings: Settings) -> None:
        """Put other settings in force. What can fail comes first."""
        config, secrets = settings.loaded.value, settings.secrets
        plans = build_plans(settings.loaded, self._parts)
        routing = _routing(plans, settings)
        sources = self._sources(settings)
        text = _policy_text(settings.loaded)
        found_otherwise = (config.discovery, secrets.found) != (self.config.discovery, self.secrets.found)
        before, after = self.reloader.settings.loaded.shadow, settings.loaded.shadow
        changed = before is not None and after is not None and before.value != after.value
        shadow = build_plan(after.value) if changed and after is not None else None
        self.config, self.secrets, self.routing, self._policy_text = config, secrets, routing, text
        self.engine.set_plans(plans)
        if self.shadow is not None and shadow is not None:
            self.shadow.set_plan(shadow)
        self.dataplane.configure(
            routing,
            _limits(config, self._parts),
            secrets.keys,
            config.access.tenant_header,
            _hints(config, secrets, plans),
        )
        self.recording.use(secrets.otlp_headers)
        self.discovery.list_config(list_config(config, secrets))
        if found_otherwise:
            self.discovery.set_sources(sources)
        # The fleet may be the same, and be looked at in another way.
        self._set_replicas(self.discovery.fleet, self.discovery.leaving)

    def _sources(self, settings: Settings) -> dict[str, Source]:
        return build_sources(settings, self._rng, look_every_s=self._look_every_s)

    def _set_replicas(self, fleet: Sequence[Listed], leaving: Container[ReplicaId] = ()) -> None:
        """These are all the replicas there are, and some of them leave."""
        specs = [listed.spec for listed in fleet]
        keys = {listed.spec.id: listed.api_key for listed in fleet if listed.api_key is not None}
        tls = {listed.spec.id: listed.tls for listed in fleet if listed.tls is not None}
        self._fleet.set_replicas(specs, self.clock.now(), leaving)
        self.dataplane.set_replicas(specs, keys, tls)
        self._prober.configure(_probe_timing(self.config), keys, tls)
        if self._probing:
            self._prober.set_replicas()
            self.feeds.set_replicas(specs)
            self._listen_to_agents()

    def _listen_to_agents(self) -> None:
        """To all of them, and to gateways. They would not listen to a router without their secret."""
        addresses: dict[ReplicaId, Address] = {}
        self.holdings.pools = tuple(ReplicaId(one.name) for one in self.config.kv.gateways)
        if self.secrets.secret is not None:
            for replica in self.engine.replica_ids():
                agent = self.engine.spec(replica).kv_agent
                if agent is not None:
                    addresses[replica] = parse_address(agent)
            addresses |= {ReplicaId(one.name): one.address for one in self.config.kv.gateways}
        if addresses and not self._prefetches:
            # Turns pay for it only where there is somebody to prefetch with.
            self._prefetches = True
            self.recording.observer.add(self.prefetcher)
        self.kv_agents.set_agents({name: AgentAddress(one.host, one.port) for name, one in addresses.items()})

    def _let_go(self, sessions: Iterable[Session]) -> None:
        """An operator has ended these: agents need not keep their KV."""
        for tenant, session in {(each.tenant, Model.session_of(each.key)) for each in sessions}:
            label = self.routing.label_of(tenant)
            self.kv_agents.release(label, session, self.engine.holders(session))

    async def probe_once(self) -> tuple[ReplicaId, ...]:
        """Find all replicas and ask each once; returns those that have not answered in time."""
        patience_s = self.config.probe.timeout + _FIRST_ROUND_MARGIN_S
        if not self._probing:
            self._probing = True
            self.discovery.set_sources(self._sources(self.reloader.settings))
            await self.discovery.first_answers(patience_s)
            self.feeds.set_replicas(listed.spec for listed in self.discovery.fleet)
            self._listen_to_agents()
        return await self._prober.first_round(patience_s)

    async def start(self) -> None:
        """Look at the replicas, then listen. Raises `HomingError` where an address cannot be had."""
        listen, admin = self.config.listen, self.config.admin.listen
        self.recording.start()
        await self.succession.begin()
        # Whoever asks there is answered by the predecessor, which is ready, until this one is.
        shares_admin = self.succession.takes_over(ADMIN)
        if self._place is not None:
            await self.admin.start_private(socket.socket(fileno=self._place.admin))
            sockets = [socket.socket(fileno=number) for number in self._place.data]
        else:
            if shares_admin:
                self.admin.check(admin.host)
            else:
                await self.admin.start(admin.host, admin.port)
            sockets = self.succession.sockets(DATA)
        await self.probe_once()
        await self.succession.recall()
        await self.dataplane.start(listen.host, listen.port, sockets)
        if shares_admin:
            await self.admin.start(admin.host, admin.port, self.succession.sockets(ADMIN))
        self.succession.established()
        for watch in self._watches:
            watch.start()

    async def close(self, grace_s: float = 0.0, *, succeeded: bool = False) -> None:
        """Stop, giving running turns `grace_s` seconds. May be called after a failed start.

        `succeeded`: another router listens in its place, as it does after a handover.
        """
        if self.succession.handed_over.is_set():
            # First, or it would say of the address that it is not ready, where the successor is.
            await self.admin.close()
        else:
            self.dataplane.stopping = True
        for watch in self._watches:
            await watch.close()
        await self.succession.close()
        succeeded = succeeded or self.succession.handed_over.is_set()
        await self.dataplane.close(grace_s, succeeded=succeeded)
        await self.succession.leave()
        await self.discovery.close()
        await self.feeds.close()
        await self.prefetcher.close()
        await self.kv_agents.close()
        await self._prober.close()
        await self.admin.close()
        await self.recording.close()


def _shadow_failed(error: Exception) -> None:
    _log.error("the shadow policy failed and decides no more; routing goes on", exc_info=error)


def _routing(plans: Sequence[Plan], settings: Settings) -> Routing:
    return Routing(
        plans,
        build_routes(settings.loaded),
        secret=settings.secrets.secret or _NO_SECRET,
        keep_bytes=settings.loaded.value.limits.kept_bodies,
    )


def _hints(config: RouterConfig, secrets: Secrets, plans: Sequence[Plan]) -> HintWriter | None:
    if secrets.secret is None:
        return None
    return HintWriter(
        secrets.secret, plans[0].pull, pools=[ReplicaId(one.name) for one in config.kv.gateways]
    )


def _limits(config: RouterConfig, parts: int) -> Limits:
    """Of one of so many routers that share the work."""
    limits = config.limits
    return Limits(
        body=limits.body,
        clients=_room_for_clients(),
        held_bytes=max(limits.body, limits.held_bytes // parts),
        head=limits.head,
        first_byte_s=limits.first_byte,
        idle_s=limits.idle,
        total_s=limits.total,
    )


def _probe_timing(config: RouterConfig) -> ProbeTiming:
    return ProbeTiming(interval_s=config.probe.interval, timeout_s=config.probe.timeout)


def _room_for_clients() -> int:
    """As many clients as can each have a connection to a replica as well."""
    files = open_files()
    return sys.maxsize if files is None else max(1, (files - min(_OWN_FILES, files // 4)) // 2)


def _policy_text(loaded: Loaded[RouterConfig]) -> str:
    """The policies in force with every default filled in, the default policy first."""
    documents = [policy.value.model_dump(mode="json") for policy in loaded.policies]
    text: str = yaml.safe_dump_all(documents, sort_keys=False)
    return text
