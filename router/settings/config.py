"""What a config file says: where to listen, which replicas there are, who may come in, how much is held.

Values only. Reading files is `load.py`'s, secrets are `credentials.py`'s.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from router.base.units import format_duration, format_size
from router.settings.fields import (
    Address,
    CollectorUrl,
    Duration,
    EventsUrl,
    FilePath,
    HeaderName,
    HostName,
    ListenAddress,
    Model,
    Name,
    PathPattern,
    Pattern,
    RemoteAddress,
    ReplicaUrl,
    Size,
    is_ip,
)


def _at_least_a_second(value: float) -> float:
    if value < 1.0:
        raise ValueError(f"{format_duration(value)} is too often; write 1s or more")
    return value


class Admin(Model):
    """The admin port: dashboard, metrics, API."""

    listen: ListenAddress = Address("127.0.0.1", 9090)
    hosts: tuple[HostName, ...] = ()
    """Names that people reach it by, beside its address, without ports."""
    token_file: FilePath | None = None
    """Holds the token that writes need, and everything on a listener that is not loopback."""


class Tls(Model):
    """What the data port speaks TLS with, in PEM. Both files are loaded anew when they change."""

    cert: FilePath
    """The certificate, followed by those between it and the one that clients trust."""
    key: FilePath
    """Its private key, without a passphrase."""


class Match(Model):
    """What a route applies to: all that is given must match. `*` may end a value, for any rest."""

    path: PathPattern | None = None
    model: Pattern | None = None
    tenant: Pattern | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.path is None and self.model is None and self.tenant is None:
            raise ValueError(
                "matches everything: give path, model or tenant, or put the policy first in 'policies'"
            )
        return self


class Route(Model):
    """Which policy decides for some requests. The first route that matches wins."""

    match: Match
    policy: Name
    """A policy of the `policies` list, or a shipped one, by its name."""


class Trust(Model):
    """How replicas and router trust each other."""

    ca: FilePath | None = None
    """Whom to trust that an `https` replica is the one that its URL names, in PEM; `None` = whom the system
    trusts."""
    verify: bool = True
    """Whether the certificate of an `https` replica is checked at all."""
    api_key_file: FilePath | None = None
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """The name of an environment variable."""

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("has both api_key_file and api_key_env; keep one")
        return self

    @model_validator(mode="after")
    def _one_way_to_trust(self) -> Self:
        if self.ca is not None and not self.verify:
            raise ValueError("has both ca and verify: false; keep one")
        return self

    def _needs_https(self, scheme: str, shown: str) -> None:
        if scheme != "https" and (self.ca is not None or not self.verify):
            raise ValueError(f"ca and verify are for https://, and {shown}")


class Part(Model):
    """What of a turn a replica does."""

    role: Literal["both", "prefill", "decode"] = "both"
    """Whole turns, their prompts, or their answers."""
    two_way: bool = False
    """A prefill replica that may fetch KV from decode replicas: its connector has `bidirectional_kv_xfer`."""

    @model_validator(mode="after")
    def _fetches_to_prefill(self) -> Self:
        if self.two_way and self.role != "prefill":
            raise ValueError(f"two_way is for role: prefill, and the role is {self.role}")
        return self


class Reached(Model):
    """A replica's name and where it is."""

    name: Name
    url: ReplicaUrl


class Replica(Part, Trust, Reached):
    """One vLLM server."""

    kv_tokens: Annotated[int, Field(gt=0)] | None = None
    """KV capacity in tokens; `None` = what `/metrics` says."""
    kv_agent: RemoteAddress | None = None
    """Where its KV agent listens; `None` = it has none. The agent calls itself what the replica is called."""
    kv_p2p: RemoteAddress | None = None
    """Where vLLM's own P2P tier in it listens, which stands in for a KV agent; `None` = it has none."""
    kv_events: EventsUrl | None = None
    """Where it publishes KV events."""
    kv_replay: EventsUrl | None = None
    """Where it replays them."""

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        self._needs_https(self.url.partition(":")[0], f"the url is {self.url}")
        return self

    @model_validator(mode="after")
    def _one_way_to_pull(self) -> Self:
        if self.kv_agent is not None and self.kv_p2p is not None:
            raise ValueError("kv_agent and kv_p2p are two ways to pull: give one")
        return self


class ReplicasFile(Model):
    """A file of replicas, for `discovery.file`."""

    version: Literal[1]
    replicas: tuple[Replica, ...]


class Found(Part, Trust):
    """What replicas that are found have in common."""

    scheme: Literal["http", "https"] = "http"
    kv_tokens: Annotated[int, Field(gt=0)] | None = None
    """KV capacity of each in tokens; `None` = what `/metrics` says."""

    @model_validator(mode="after")
    def _tls_fits(self) -> Self:
        self._needs_https(self.scheme, "scheme is http")
        return self


_Port = Annotated[int, Field(ge=1, le=65535)]


class Dns(Found):
    """Replicas by DNS: one at each address of a name, or at each target of its SRV records."""

    name: HostName
    type: Literal["A", "AAAA", "SRV"] = "A"
    port: _Port | None = None
    """Theirs; SRV records bring their own."""
    every: Annotated[Duration, AfterValidator(_at_least_a_second)] = 10.0
    """Between two questions."""
    server: RemoteAddress | None = None
    """Who is asked; `None` = the system's."""

    @model_validator(mode="after")
    def _asks_an_address(self) -> Self:
        if self.server is not None and not is_ip(self.server.host):
            raise ValueError(f"server: {self.server.host} is a name, and names are what it is asked for")
        return self

    @model_validator(mode="after")
    def _has_a_port(self) -> Self:
        if self.type == "SRV" and self.port is not None:
            raise ValueError("SRV records name the port; leave 'port' out")
        if self.type != "SRV" and self.port is None:
            raise ValueError(f"{self.type} records name no port; give 'port'")
        return self


class Kubernetes(Found):
    """Replicas in a Kubernetes cluster: behind a service, or pods by their labels."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = None
    """`None` = the router's own."""
    service: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = None
    """Its EndpointSlices name the replicas."""
    pods: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """A label selector, `app=vllm,tier in (gpu)`."""
    port: _Port | Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$")] | None = None
    """A number, or the name of a port; `None` = the service's first."""
    kubeconfig: FilePath | None = None
    """How to reach the API server; `None` = as a pod of the cluster."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.service is None) == (self.pods is None):
            raise ValueError("give either service or pods")
        if self.pods is not None and self.port is None:
            raise ValueError("pods have many ports; give 'port'")
        return self


class Gateway(Model):
    """A KV gateway: a pool of KV that every agent may pull from."""

    name: Name
    """What it calls itself, and agents' files call it."""
    address: RemoteAddress


class Kv(Model):
    """Where KV lies beside the replicas. The secret that agents share is `access.secret_file`'s."""

    gateways: tuple[Gateway, ...] = ()


class Discovery(Model):
    """Finding replicas elsewhere than in this file, beside those that it lists."""

    file: FilePath | None = None
    """A `ReplicasFile`, read anew when it is replaced."""
    dns: Dns | None = None
    kubernetes: Kubernetes | None = None

    def __bool__(self) -> bool:
        return (self.file, self.dns, self.kubernetes) != (None, None, None)


class Access(Model):
    """Who may come in, and the secret that session keys are made with."""

    keys_file: FilePath | None = None
    tenant_header: HeaderName | None = None
    """Names the tenant; only behind a gateway that sets it and drops the client's own."""
    secret_file: FilePath | None = None
    """Routers that share it make the same session keys."""


def _between(least: float, most: float, write: Callable[[Any], str]) -> AfterValidator:
    """Refuse what nobody means: a slip of the unit would else show as a router that refuses everything."""

    def check(value: Any) -> Any:
        if not least <= value <= most:
            raise ValueError(f"{write(value)} is not from {write(least)} to {write(most)}")
        return value

    return AfterValidator(check)


_DAY_S: Final = 86_400.0
_Bytes = Annotated[Size, _between(1 << 10, 1 << 40, format_size)]
_Wait = Annotated[Duration, _between(0.1, 30 * _DAY_S, format_duration)]
_Look = Annotated[Duration, _between(0.02, 3600.0, format_duration)]


class Limits(Model):
    """What is refused or cut off. Sizes in bytes, durations in seconds."""

    body: _Bytes = 64 << 20
    held_bytes: _Bytes = 2 << 30
    """All request bodies held at once: waiting, or kept for a retry."""
    kept_bodies: Annotated[Size, _between(0, 1 << 40, format_size)] = 32 << 20
    """The latest bodies of sessions, kept so that their next turns need not be read from the beginning."""
    head: Annotated[Size, _between(1 << 10, 16 << 20, format_size)] = 64 << 10
    first_byte: _Wait = 600.0
    """Wait for a replica's first byte."""
    idle: _Wait = 75.0
    """A client's connection without a request."""
    total: _Wait | None = None
    """A whole exchange; `None` = no limit."""

    @model_validator(mode="after")
    def _a_body_fits(self) -> Self:
        if self.body > self.held_bytes:
            raise ValueError(
                f"body ({format_size(self.body)}) is more than held_bytes ({format_size(self.held_bytes)}): "
                "such a request could never be held"
            )
        return self


class Telemetry(Model):
    """What the router says of itself, beyond `/metrics`."""

    otlp: CollectorUrl | None = None
    """A collector that takes traces by OTLP over HTTP; `None` = turns are not traced."""
    otlp_headers_file: FilePath | None = None
    """Holds headers that go along with what is sent there, a key for example."""
    otlp_ca: FilePath | None = None
    """Whom to trust that an `https` collector is the one that its URL names, in PEM; `None` = whom the system
    trusts."""
    trace_sample: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of traces that are recorded."""
    trace_parent: Literal["follow", "ignore"] = "follow"
    """Whether a client that says if it records its trace is followed, or has its turns sampled as others."""
    access_log: Annotated[str, Field(min_length=1)] | None = None
    """A file, or `-` for standard output; `None` = no access log. Relative to the working directory."""

    @model_validator(mode="after")
    def _has_a_collector(self) -> Self:
        for name in ("otlp_headers_file", "otlp_ca"):
            if self.otlp is None and getattr(self, name) is not None:
                raise ValueError(f"{name} is for a collector, and there is none; give otlp")
        if self.otlp_ca is not None and self.otlp is not None and self.otlp.startswith("http:"):
            raise ValueError(f"otlp_ca is for https://, and otlp is {self.otlp}")
        return self


class Probe(Model):
    """How replicas are looked at: `/health` and `/metrics`."""

    interval: _Look = 2.0
    timeout: _Look = 2.0
    """A replica that has not answered by then counts as failed this once."""


class Restart(Model):
    """How a router ends, and what the next one takes over from it."""

    grace: _Wait = 20.0
    """What a running turn gets to end in after SIGTERM."""
    snapshot: FilePath | None = None
    """Where sessions and the prefix index are kept from one run to the next."""
    handover: FilePath | None = None
    """A Unix socket at which a successor is given the listening sockets and the sessions."""
    linger: _Wait = 600.0
    """What a running turn gets to end in once a successor has taken over."""


class RouterConfig(Model):
    """A config file."""

    version: Literal[1]
    listen: ListenAddress = Address("127.0.0.1", 8080)
    tls: Tls | None = None
    """Of the data port; `None` = plain HTTP."""
    admin: Admin = Admin()
    policies: Annotated[tuple[FilePath, ...], Field(min_length=1)] = ("home",)
    """Files, or shipped policies by their bare name. The first is the default."""
    routes: tuple[Route, ...] = ()
    shadow: FilePath | None = None
    """A policy that decides beside the one in force, without effect: a file, or a shipped one by its name."""
    replicas: tuple[Replica, ...] = ()
    kv: Kv = Kv()
    discovery: Discovery = Discovery()
    access: Access = Access()
    limits: Limits = Limits()
    telemetry: Telemetry = Telemetry()
    probe: Probe = Probe()
    restart: Restart = Restart()

    @model_validator(mode="after")
    def _gateways_have_names_of_their_own(self) -> Self:
        taken = {replica.name: "a replica" for replica in self.replicas}
        for at, gateway in enumerate(self.kv.gateways):
            if gateway.name in taken:
                raise ValueError(
                    f"kv.gateways[{at}].name: '{gateway.name}' is {taken[gateway.name]}'s already"
                )
            taken[gateway.name] = "another gateway"
        return self

    @model_validator(mode="after")
    def _one_kind_of_pulls(self) -> Self:
        tiers = next((one.name for one in self.replicas if one.kv_p2p is not None), None)
        agents = next((one.name for one in self.replicas if one.kv_agent is not None), None)
        other = f"'{agents}' a kv_agent" if agents is not None else "the fleet a kv gateway"
        if tiers is not None and (agents is not None or self.kv.gateways):
            raise ValueError(
                f"replica '{tiers}' has kv_p2p and {other}, and neither pulls from the other: have one kind"
            )
        return self
