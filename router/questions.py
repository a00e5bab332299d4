"""Where a request would go and why: asked of a running router, which sends and counts nothing for it."""

from collections.abc import Callable, Mapping

from router.base.clock import Clock
from router.base.errors import ErrorKind, Refused
from router.base.ids import OPEN_TENANT, TenantId
from router.core.chain_watch import ChainWatch, told
from router.core.engine import Engine
from router.core.model import Model
from router.dataplane.server import DataPlane
from router.settings.access import AccessKeys
from router.telemetry.bill import bill
from router.telemetry.breaks import break_fields


class Questions:
    """Answers as the data plane would decide now. `keys` is asked for the API keys in force."""

    def __init__(
        self,
        engine: Engine,
        dataplane: DataPlane,
        chains: ChainWatch,
        clock: Clock,
        keys: Callable[[], AccessKeys | None],
    ) -> None:
        self._engine = engine
        self._dataplane = dataplane
        self._chains = chains
        self._clock = clock
        self._keys = keys

    def explain(
        self, path: str, body: bytes, session: str | None = None, tenant: str | None = None
    ) -> Mapping[str, object]:
        """The decision that a request would get now, with its bill; nothing is sent or counted.

        Raises `Refused` where the request would be.
        """
        keys = self._keys()
        if tenant is not None and keys is not None and tenant not in keys.tenants:
            raise Refused(ErrorKind.BAD_REQUEST, f"no API key names the tenant {tenant!r}")
        headers = [(b"host", b"explain"), (b"content-type", b"application/json")]
        routing = self._dataplane.routing
        name = routing.default_session_header
        if session is not None and name is not None:
            headers.append((name.encode("ascii"), session.encode()))
        head = self._dataplane.heads.read(b"POST", path.encode("ascii", "replace"), "1.1", headers)
        # What the router answers by itself can only be read, so all that it does not refuse is relayed.
        self._dataplane.local.answer(head)
        owner = TenantId(tenant) if tenant is not None else OPEN_TENANT
        routed = routing.route(head, body, owner)
        if self._dataplane.pairs is not None:
            self._dataplane.pairs.prepare(routed)
        now = self._clock.now()
        decision = self._engine.decide(routed.turn, now, plan=routed.plan)
        turn = routed.turn
        asked = told(turn, decision, Model(turn.model))
        broken = (
            self._chains.look(asked, routed.outline)
            if asked is not None and routed.outline is not None
            else None
        )
        return {
            "model": turn.model,
            "session": turn.session,
            "session_source": turn.session_source,
            "segments": len(turn.chain.hashes),
            "break": break_fields(broken, now) if broken is not None else None,
            **bill(decision),
        }
