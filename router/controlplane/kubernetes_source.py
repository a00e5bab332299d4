"""Finds replicas in Kubernetes: lists EndpointSlices or pods, then watches what becomes of them.

The list is the truth and the watch only news of it: whenever the watch breaks, has become too old (410) or
has gone on for long, everything is listed again. While the API server cannot be asked, the replicas that it
named last stay.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from router.base.system import system_words
from router.controlplane.discovery import Report
from router.controlplane.kubernetes_objects import (
    Place,
    metadata_of,
    places_in_slices,
    places_of_pods,
)
from router.controlplane.roster import MAX_REPLICAS
from router.controlplane.template import Template

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_LIST_S: Final = 15.0
_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one list, or one event: some thousand pods with all that Kubernetes notes on them."""

# The API server says something about once a minute, if only where the watch stands.
_SILENT_S: Final = 150.0

# Between two watches, and two lists, however soon the one before ended: a server that ends each at once must
# not be asked without pause. Nothing is lost meanwhile: a watch begins where the one before stood.
_PAUSE_S: Final = 0.5

_BACKOFF_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)

_SHOWN: Final = 3
"""Things that cannot be made out, in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is looked for."""

    namespace: str | None
    """`None` = the router's own."""
    service: str | None
    """Whose EndpointSlices are read; `None` = pods are looked for."""
    pods: str | None
    """A label selector."""
    port: int | str | None
    kubeconfig: Path | None
    """`None` = as a pod of the cluster."""
    resync_s: float = 300.0
    """After this everything is listed again."""


class _Gone(Exception):
    """What was listed is too old to be followed any further."""


class _Refusal(Exception):
    """The API server answered, and not with what was asked for; the message is complete."""


_List = Callable[..., Awaitable[Any]]


class KubernetesSource:
    """A `Source`. Needs `kubernetes-asyncio`, which is loaded when it runs."""

    def __init__(self, query: Query, template: Template, rng: Random, *, pause_s: float = _PAUSE_S) -> None:
        self._query = query
        self._template = template
        self._rng = rng
        self._pause_s = pause_s

    async def run(self, report: Report) -> None:
        failures = 0
        while True:
            try:
                async with await self._connect() as client:
                    listing = await self._listing(client)
                    while True:
                        await self._follow(listing, report)
                        failures = 0
                        await asyncio.sleep(self._pause_s)
            except Exception as error:
                if (words := _words(error)) is None:
                    raise
                report.failed(words)
            pause_s = _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
            failures += 1
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.0))

    async def _connect(self) -> "ApiClient":
        from kubernetes_asyncio import config
        from kubernetes_asyncio.client import ApiClient, Configuration

        configuration = Configuration()
        if self._query.kubeconfig is not None:
            await config.load_kube_config(
                config_file=str(self._query.kubeconfig), client_configuration=configuration
            )
        else:
            config.load_incluster_config(client_configuration=configuration)
        return ApiClient(configuration)

    async def _listing(self, client: "ApiClient") -> _List:
        """The call that lists, or with `watch=True` follows, what is looked for."""
        from kubernetes_asyncio.client import CoreV1Api, DiscoveryV1Api

        query = self._query
        namespace = query.namespace
        if namespace is None and query.kubeconfig is None:
            namespace = (await asyncio.to_thread(_OWN_NAMESPACE.read_text)).strip()
        call: _List
        if query.service is not None:
            call = DiscoveryV1Api(client).list_namespaced_endpoint_slice
            selector = f"kubernetes.io/service-name={query.service}"
        else:
            call = CoreV1Api(client).list_namespaced_pod
            selector = query.pods or ""

        async def listing(**more: Any) -> Any:
            return await call(namespace or "default", label_selector=selector, _preload_content=False, **more)

        return listing

    async def _follow(self, listing: _List, report: Report) -> None:
        """List everything once, and follow it until it must be listed again."""
        objects, version = await _list_all(listing)
        self._tell(objects, report)
        deadline = asyncio.get_running_loop().time() + self._query.resync_s
        try:
            while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
                async with aclosing(_watch(listing, version, left_s)) as events:
                    async for kind, raw in events:
                        metadata = metadata_of(raw)
                        version = metadata.resource_version or version
                        if kind == "BOOKMARK":
                            continue
                        if kind == "DELETED":
                            objects.pop(metadata.name, None)
                        else:
                            objects[metadata.name] = raw
                        self._tell(objects, report)
                await asyncio.sleep(self._pause_s)
        except _Gone:
            return

    def _tell(self, objects: dict[str, Any], report: Report) -> None:
        places: dict[str, Place]
        read = places_in_slices if self._query.service is not None else places_of_pods
        places, wrong = read(objects.values(), self._query.port)
        listed = []
        for name, (host, port) in sorted(places.items()):
            try:
                listed.append(self._template.at(host, port, name))
            except ValueError as error:
                wrong.append(f"{name}: {error}")
        report.found(listed, _few(wrong))


async def _list_all(listing: _List) -> tuple[dict[str, Any], str]:
    """Every object by name, and the version of the list."""
    async with asyncio.timeout(_LIST_S):
        response = await listing()
        try:
            body = await _body(response)
        finally:
            response.release()
    content = msgspec.json.decode(body)
    if not isinstance(content, dict) or not isinstance(content.get("items"), list):
        raise _Refusal("the API server's answer is no list")
    items = content["items"]
    if len(items) > MAX_REPLICAS:
        raise _Refusal(f"{len(items)} objects match, which is more than the {MAX_REPLICAS} that can be meant")
    return {metadata_of(item).name: item for item in items}, metadata_of(content).resource_version


async def _watch(listing: _List, version: str, seconds: float) -> AsyncGenerator[tuple[str, Any], None]:
    """What happens after `version`, as (kind, object), for so long at most. Raises `_Gone`."""
    response = await listing(
        watch=True,
        resource_version=version,
        timeout_seconds=max(1, int(seconds)),
        allow_watch_bookmarks=True,
        _request_timeout=aiohttp.ClientTimeout(total=None, connect=_LIST_S, sock_read=_SILENT_S),
    )
    try:
        _check(response)
        async for line in _lines(response):
            event = msgspec.json.decode(line)
            raw = event["object"]
            if event["type"] == "ERROR":
                if raw.get("code") == 410:
                    raise _Gone
                raise _Refusal(f"the API server ended the watch: {raw.get('code')} {raw.get('reason')}")
            yield event["type"], raw
    finally:
        response.close()


async def _lines(response: Any) -> AsyncIterator[bytes]:
    """Lines of any length up to the bound: one event may be larger than a stream's own buffer."""
    rest = bytearray()
    async for chunk in response.content.iter_any():
        rest += chunk
        *lines, last = rest.split(b"\n") if b"\n" in chunk else (rest,)
        for line in lines:
            if line.strip():
                yield bytes(line)
        rest = bytearray(last)
        if len(rest) > _MAX_BYTES:
            raise _Refusal(f"one event has more than {_MAX_BYTES >> 20} MiB")


async def _body(response: Any) -> bytes:
    _check(response)
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise _Refusal(f"the API server's answer has more than {_MAX_BYTES >> 20} MiB")
    return bytes(body)


def _check(response: Any) -> None:
    if response.status == 410:
        raise _Gone
    if response.status in (401, 403):
        raise _Refusal(
            f"the API server answers {response.status}: may the service account list and watch these?"
        )
    if response.status != 200:
        raise _Refusal(f"the API server answers {response.status}")


def _words(error: Exception) -> str | None:
    """What went wrong out there; `None` for a fault of ours."""
    if isinstance(error, ModuleNotFoundError):
        return "kubernetes-asyncio is not installed: pip install 'homing[kubernetes]'"
    if isinstance(error, _Refusal):
        return str(error)
    if isinstance(error, _Gone):
        return "the API server finds its own list too old"
    if isinstance(error, TimeoutError):
        return "the API server did not answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to the API server: {system_words(error.os_error)}"
    if isinstance(error, aiohttp.ClientError):
        return f"the API server broke off: {type(error).__name__}"
    if isinstance(error, msgspec.MsgspecError | RecursionError | KeyError | TypeError | AttributeError):
        return f"the API server's answer cannot be read: {type(error).__name__}"
    if type(error).__module__.startswith("kubernetes_asyncio."):
        return f"the way to the API server is not known: {error}"
    if isinstance(error, OSError):
        return f"the way to the API server is not known: {system_words(error)}"
    return None


def _few(wrong: Sequence[str]) -> str:
    more = len(wrong) - _SHOWN
    return "; ".join(wrong[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
