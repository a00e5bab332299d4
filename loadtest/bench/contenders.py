"""The proxies: where each is found, how it is set up, how it is started.

Each does what its users run it for: ours and the two Rust routers route by session or prefix, HAProxy and
nginx hash the session header. All listen on loopback only, write no access log, and are given one core.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from loadtest.bench import debian
from loadtest.bench.debian import Found

BY_SESSION: Final = "hdr(X-Session-ID)"
"""HAProxy's name for the session header, to balance by."""

YARDSTICK: Final = "vllm-router"
"""The contender that the others are compared with."""

OURS: Final = "homing"
TRACED: Final = "homing-traced"


class Places(NamedTuple):
    """Where the bench keeps the programs that it brings."""

    environment: Path
    """A virtual environment with the routers from the package index."""
    unpacked: Path
    """Debian's packages, unpacked."""


class Setting(NamedTuple):
    """What one start of a proxy is given."""

    program: Path
    port: int
    spare_port: int
    """For its metrics or its admin."""
    upstreams: Sequence[int]
    """Loopback ports of the replicas."""
    folder: Path
    """Its own, for configuration and temporary files."""
    kv_events: Mapping[str, int] = MappingProxyType({})
    """Ports of KV events, by the URL of each replica that there is or will be; none where it follows none."""

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.upstreams]


@dataclass(frozen=True, slots=True)
class Contender:
    """One proxy."""

    name: str
    setup: str
    """How it routes here, for the table's legend."""
    find: Callable[[Places], Found | None]
    version: Callable[[Found], str]
    arguments: Callable[[Setting], list[str]]
    """Writes what configuration it needs; answers the command line."""
    missing: str
    """What to do where it is not found."""
    ours: bool = False
    on_request: bool = False
    """Whether it runs only where it is named."""
    debian: bool = False
    """Whether Debian's package of the same name brings it."""


def _homing() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        return [
            str(setting.program),
            "serve",
            *(word for url in setting.urls for word in ("--replica", url)),
            *("--listen", f"127.0.0.1:{setting.port}"),
            *("--admin", f"127.0.0.1:{setting.spare_port}"),
            *("--log-level", "warning"),
        ]

    return Contender(
        name=OURS,
        setup="defaults: policy `home`, index, session table, probing and scraping each second, metrics",
        find=lambda _: _beside(Path(sys.executable).parent, "homing"),
        version=_own_version,
        arguments=arguments,
        missing="install this project: make bench",
        ours=True,
    )


def _homing_traced() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        path = setting.folder / "traced.yaml"
        path.write_text(traced_configuration(setting.port, setting.spare_port, setting.urls))
        return [str(setting.program), "serve", "-c", str(path), "--log-level", "warning"]

    return replace(
        _homing(),
        name=TRACED,
        setup="as `homing`, with one turn in ten traced, to a collector beside the replicas",
        arguments=arguments,
        on_request=True,
    )


def traced_configuration(port: int, admin_port: int, urls: Sequence[str]) -> str:
    """A config file that says what the flags of `homing` say, and where spans go."""
    collector = urls[0].replace("127.0.0.1", "localhost")
    replicas = "".join(f'  - {{name: r{number}, url: "{url}"}}\n' for number, url in enumerate(urls))
    return (
        "version: 1\n"
        f"listen: 127.0.0.1:{port}\n"
        f"admin: {{listen: 127.0.0.1:{admin_port}}}\n"
        f'telemetry: {{otlp: "{collector}", trace_sample: 0.1}}\n'
        f"replicas:\n{replicas}"
    )


def _vllm_router() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        return [
            str(setting.program),
            *("--host", "127.0.0.1", "--port", str(setting.port)),
            *("--worker-urls", *setting.urls),
            *("--policy", "consistent_hash"),
            *rust_router_flags(setting),
        ]

    return Contender(
        name=YARDSTICK,
        setup="`consistent_hash`, log level `error`",
        find=lambda places: _beside(places.environment / "bin", "vllm-router"),
        version=lambda found: _distribution(str(found.path.with_name("python")), "vllm-router"),
        arguments=arguments,
        missing="make bench installs it",
    )


def _sglang_router() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        return [
            str(setting.program),
            "launch",
            *("--host", "127.0.0.1", "--port", str(setting.port)),
            *("--worker-urls", *setting.urls),
            *("--policy", "cache_aware"),
            *rust_router_flags(setting),
        ]

    return Contender(
        name="sglang-router",
        setup="`cache_aware`, log level `error`",
        find=lambda places: _beside(places.environment / "bin", "sglang-router"),
        version=lambda found: _distribution(str(found.path.with_name("python")), "sglang-router"),
        arguments=arguments,
        missing="make bench installs it",
    )


def rust_router_flags(setting: Setting) -> list[str]:
    """What both Rust routers are told beside their policy."""
    return [
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(setting.spare_port)),
        # As they come, they write several lines a request. `error` is the quietest level that both know;
        # vllm-router takes `critical`, and logs as with `info`.
        *("--log-level", "error"),
        *("--worker-startup-check-interval", "1", "--worker-startup-timeout-secs", "30"),
    ]


def _haproxy() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        path = setting.folder / "haproxy.cfg"
        path.write_text(haproxy_configuration(setting.port, setting.upstreams))
        return [str(setting.program), "-db", "-f", str(path)]

    return Contender(
        name="haproxy",
        setup="`balance hdr(X-Session-ID)`, consistent, health checks, one thread",
        find=lambda places: debian.find("haproxy", places.unpacked),
        version=lambda found: _first_line(found, "-v").removeprefix("HAProxy version ").split()[0],
        arguments=arguments,
        missing="apt-get install haproxy",
        debian=True,
    )


def haproxy_configuration(
    port: int, upstreams: Sequence[int], *, balance: str = BY_SESSION, retries: bool = False
) -> str:
    """`retries`: to another replica, where one could not be reached or gave no answer."""
    again = (
        "    retries 3\n    option redispatch 1\n    retry-on conn-failure empty-response\n"
        if retries
        else ""
    )
    servers = "".join(
        f"    server r{number} 127.0.0.1:{upstream} check inter 1s\n"
        for number, upstream in enumerate(upstreams)
    )
    return (
        "global\n"
        "    nbthread 1\n"
        "    maxconn 4096\n"
        "defaults\n"
        "    mode http\n"
        "    timeout connect 5s\n"
        "    timeout client 75s\n"
        "    timeout server 10m\n"
        "    option http-keep-alive\n"
        "    http-reuse always\n"
        # Without it HAProxy holds a stream's chunks back, up to 0.2 s, to send fewer packets.
        "    option http-no-delay\n"
        "frontend in\n"
        f"    bind 127.0.0.1:{port}\n"
        "    default_backend replicas\n"
        "backend replicas\n"
        f"    balance {balance}\n"
        "    hash-type consistent\n"
        f"{again}"
        "    option httpchk GET /health\n"
        f"{servers}"
    )


def _nginx() -> Contender:
    def arguments(setting: Setting) -> list[str]:
        path = setting.folder / "nginx.conf"
        path.write_text(
            nginx_configuration(setting.port, setting.upstreams, setting.folder, as_root=os.geteuid() == 0)
        )
        return [str(setting.program), "-e", "stderr", "-p", str(setting.folder), "-c", str(path)]

    return Contender(
        name="nginx",
        setup="`hash $http_x_session_id consistent`, one worker, bodies in memory, answers not buffered",
        find=lambda places: debian.find("nginx", places.unpacked),
        version=lambda found: _first_line(found, "-v").rpartition("/")[2],
        arguments=arguments,
        missing="apt-get install nginx",
        debian=True,
    )


def nginx_configuration(
    port: int, upstreams: Sequence[int], folder: Path, *, as_root: bool, retries: bool = False
) -> str:
    """`as_root`: keep the worker at the same user, since it would otherwise need the right to `folder`.
    `retries`: to another replica, where one could not be reached or gave no answer."""
    again = "            proxy_next_upstream error timeout non_idempotent;\n" if retries else ""
    servers = "".join(f"        server 127.0.0.1:{upstream};\n" for upstream in upstreams)
    temporary = "".join(
        f"    {kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"{'user root;' if as_root else ''}\n"
        "daemon off;\n"
        "worker_processes 1;\n"
        f"pid {folder}/nginx.pid;\n"
        "error_log stderr crit;\n"
        "events { worker_connections 4096; }\n"
        "http {\n"
        "    access_log off;\n"
        # A connection that is closed after 1000 requests, as nginx does unasked, is not kept alive.
        "    keepalive_requests 100000000;\n"
        "    client_max_body_size 64m;\n"
        "    client_body_buffer_size 512k;\n"
        f"{temporary}"
        "    upstream replicas {\n"
        "        hash $http_x_session_id consistent;\n"
        f"{servers}"
        "        keepalive 512;\n"
        "        keepalive_requests 100000000;\n"
        "    }\n"
        "    server {\n"
        f"        listen 127.0.0.1:{port};\n"
        "        location / {\n"
        "            proxy_pass http://replicas;\n"
        "            proxy_http_version 1.1;\n"
        '            proxy_set_header Connection "";\n'
        # A buffered stream would come to the client in lumps.
        "            proxy_buffering off;\n"
        "            proxy_read_timeout 10m;\n"
        f"{again}"
        "        }\n"
        "    }\n"
        "}\n"
    )


def contenders() -> Mapping[str, Contender]:
    """All, by name, ours first."""
    made = (_homing(), _homing_traced(), _vllm_router(), _sglang_router(), _haproxy(), _nginx())
    return {one.name: one for one in made}


def _beside(folder: Path, name: str) -> Found | None:
    path = folder / name
    return Found(path, {}) if path.is_file() else None


def _own_version(found: Found) -> str:
    """Ours says as well whether it is compiled."""
    said = subprocess.run([found.path, "--version"], capture_output=True, text=True, check=True).stdout
    return said.strip().removeprefix("homing ")


def _distribution(python: str, name: str) -> str:
    code = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _first_line(found: Found, flag: str) -> str:
    done = subprocess.run(
        [found.path, flag],
        env=os.environ | dict(found.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[0]
