"""Builds the sources that a config's `discovery` names. Each is loaded only where it is used."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

from router.base.errors import SettingsError
from router.controlplane.discovery import Source
from router.controlplane.file_source import FileReading, FileSource
from router.controlplane.roster import Listed
from router.controlplane.template import Template
from router.core.fleet import Role
from router.settings.build import build_spec
from router.settings.compare import Settings
from router.settings.config import Dns, Found, Kubernetes, RouterConfig
from router.settings.credentials import Access, Secrets, replica_access
from router.settings.document import read_document
from router.settings.load import read_replicas
from router.settings.locate import find_file, places_of, shown


def list_config(config: RouterConfig, secrets: Secrets) -> list[Listed]:
    """The replicas that the config itself lists."""
    return [
        Listed(spec, secrets.replica_keys.get(spec.id), secrets.replica_tls.get(spec.id))
        for spec in map(build_spec, config.replicas)
    ]


def build_sources(settings: Settings, rng: Random, *, look_every_s: float) -> dict[str, Source]:
    """The sources by name. Files are looked at every `look_every_s` seconds."""
    config, folder = settings.loaded.value.discovery, settings.loaded.folder
    sources: dict[str, Source] = {}
    if config.file is not None:
        path = find_file(config.file, folder) or folder / config.file
        environ = settings.environ
        sources["file"] = FileSource(path, lambda at: read_listed(at, environ), every_s=look_every_s)
    if config.dns is not None:
        sources["dns"] = _dns(config.dns, settings.secrets.found["dns"], rng)
    if config.kubernetes is not None:
        sources["kubernetes"] = _kubernetes(
            config.kubernetes, settings.secrets.found["kubernetes"], folder, rng
        )
    return sources


def read_listed(path: Path, environ: Mapping[str, str]) -> FileReading:
    """The replicas of a file."""
    named: list[Path] = []
    try:
        reading = read_replicas(read_document(path, shown(path)), path.parent).loaded()
        for replica in reading.value.replicas:
            for written in (replica.ca, replica.api_key_file):
                named += places_of(written, reading.folder) if written is not None else ()
        access = replica_access(reading, environ)
    except SettingsError as error:
        return FileReading(faults=error.faults, named=named)
    listed = [
        Listed(spec, access[spec.id].api_key, access[spec.id].tls)
        for spec in map(build_spec, reading.value.replicas)
    ]
    return FileReading(listed, named=named)


def _dns(written: Dns, access: Access, rng: Random) -> Source:
    from router.controlplane.dns_source import DnsSource, Question

    server = written.server
    question = Question(
        name=written.name,
        type=written.type,
        port=written.port,
        every_s=written.every,
        server=(server.host, server.port) if server is not None else None,
    )
    return DnsSource(question, _template(written, access), rng)


def _kubernetes(written: Kubernetes, access: Access, folder: Path, rng: Random) -> Source:
    from router.controlplane.kubernetes_source import KubernetesSource, Query

    kubeconfig = written.kubeconfig
    query = Query(
        namespace=written.namespace,
        service=written.service,
        pods=written.pods,
        port=written.port,
        kubeconfig=(find_file(kubeconfig, folder) or folder / kubeconfig) if kubeconfig is not None else None,
    )
    return KubernetesSource(query, _template(written, access), rng)


def _template(written: Found, access: Access) -> Template:
    return Template(
        scheme=written.scheme,
        api_key=access.api_key,
        tls=access.tls,
        kv_tokens=written.kv_tokens,
        role=Role(written.role),
        two_way=written.two_way,
    )
