"""What the Kubernetes API says of pods and endpoints, read as far as it is of use. Knows no API server."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

_Port = int | str | None
"""A number, the name of a port, or the first there is."""

# Of a service that speaks several, one address of each endpoint is enough.
_FAMILIES: Final = {"IPv4": 0, "IPv6": 1, "FQDN": 2}


class Metadata(msgspec.Struct, rename="camel"):
    """Of any object."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _NamedPort(msgspec.Struct, rename="camel"):
    name: str | None = None
    port: int | None = None
    container_port: int | None = None


class _Conditions(msgspec.Struct, rename="camel"):
    terminating: bool | None = None


class _TargetRef(msgspec.Struct, rename="camel"):
    kind: str = ""
    name: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    conditions: _Conditions | None = None
    target_ref: _TargetRef | None = None


class _Slice(msgspec.Struct, rename="camel"):
    metadata: Metadata
    address_type: str = "IPv4"
    endpoints: list[_Endpoint] | None = None
    ports: list[_NamedPort] | None = None


class _Container(msgspec.Struct, rename="camel"):
    ports: list[_NamedPort] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    pod_ip: str | None = msgspec.field(default=None, name="podIP")


class _Pod(msgspec.Struct, rename="camel"):
    metadata: Metadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


Place = tuple[str, int]
"""Host and port."""


def places_in_slices(slices: Iterable[Any], port: _Port) -> tuple[dict[str, Place], list[str]]:
    """Where each endpoint of these EndpointSlices is, by its pod's name or else its address; and what could
    not be made out, a line each.

    Endpoints that terminate are left out. Those that are not ready are not: whether a replica is well, its
    own probes tell, and one that is busy for a moment must not lose its sessions.
    """
    found: dict[str, tuple[int, Place]] = {}
    wrong = []
    for raw in slices:
        try:
            piece = msgspec.convert(raw, _Slice)
        except msgspec.ValidationError as error:
            wrong.append(f"an EndpointSlice cannot be read: {error}")
            continue
        number = _number(port, ((one.name, one.port) for one in piece.ports or ()))
        if number is None:
            if piece.endpoints:
                wrong.append(f"EndpointSlice {piece.metadata.name} has no port {port or ''}".rstrip())
            continue
        family = _FAMILIES.get(piece.address_type, len(_FAMILIES))
        for endpoint in piece.endpoints or ():
            if not endpoint.addresses or (endpoint.conditions and endpoint.conditions.terminating):
                continue
            host = endpoint.addresses[0]
            pod = endpoint.target_ref
            name = pod.name if pod is not None and pod.kind == "Pod" and pod.name else f"{host}-{number}"
            if name not in found or family < found[name][0]:
                found[name] = (family, (host, number))
    return {name: place for name, (_, place) in found.items()}, wrong


def places_of_pods(pods: Iterable[Any], port: _Port) -> tuple[dict[str, Place], list[str]]:
    """Where each pod that runs is, by its name; and what could not be made out, a line each."""
    found: dict[str, Place] = {}
    wrong = []
    for raw in pods:
        try:
            pod = msgspec.convert(raw, _Pod)
        except msgspec.ValidationError as error:
            wrong.append(f"a pod cannot be read: {error}")
            continue
        status = pod.status
        if (
            status is None
            or status.phase != "Running"
            or not status.pod_ip
            or pod.metadata.deletion_timestamp
        ):
            continue
        containers = pod.spec.containers if pod.spec is not None else []
        ports = ((one.name, one.container_port) for container in containers for one in container.ports or ())
        number = _number(port, ports)
        if number is None:
            wrong.append(f"pod {pod.metadata.name} has no port {port}")
        else:
            found[pod.metadata.name] = (status.pod_ip, number)
    return found, wrong


def metadata_of(raw: Mapping[str, Any]) -> Metadata:
    """An object's name and version. Raises `msgspec.ValidationError` where it has none."""
    return msgspec.convert(raw.get("metadata"), Metadata)


def _number(port: _Port, named: Iterable[tuple[str | None, int | None]]) -> int | None:
    if isinstance(port, int):
        return port
    for name, number in named:
        if number is not None and (port is None or name == port):
            return number
    return None
