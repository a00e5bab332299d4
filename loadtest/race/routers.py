"""The routers: how each is set up for the race, and how it is told of a replica that is added.

As somebody would who has read its manual: health checks each second, and another replica where one could not
be reached or gave no answer. Everything else is as it comes.
"""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import httpx
import yaml

from loadtest.bench.contenders import (
    BY_SESSION,
    Contender,
    Setting,
    contenders,
    haproxy_configuration,
    nginx_configuration,
    rust_router_flags,
)
from loadtest.race.scenarios import REPLICA
from router.simulator.events import REPLAY_PORT

OURS: Final = "homing"

_REPLICAS_FILE: Final = "replicas.yaml"
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Router:
    """One entry of the race."""

    name: str
    setup: str
    """For the table's legend."""
    contender: Contender
    """Where the program is found, and its version."""
    arguments: Callable[[Setting], list[str]]
    add: Callable[[Setting, int], None]
    """Tell it of a further replica; `setting` has that as its last. The number is its process."""
    kv_events: bool = False
    """Whether replicas publish KV events for it."""


def routers() -> Mapping[str, Router]:
    """All, by name, ours first."""
    found = contenders()
    ours, vllm, sglang, haproxy, nginx = (
        found[name] for name in ("homing", "vllm-router", "sglang-router", "haproxy", "nginx")
    )
    rust = "health checks each second, retries as they come"
    proxies = "health checks each second, retries on another replica"
    entries = (
        Router(OURS, "policy `home`; replicas from a file, probed each second", ours, _homing, _tell_homing),
        *(
            Router(f"vllm-router {policy}", f"`{policy}`; {rust}", vllm, _vllm(policy), _tell_vllm)
            for policy in ("consistent_hash", "cache_aware", "sticky_least_loaded")
        ),
        Router(
            "vllm-router kv_aware",
            f"`kv_aware`, with KV events of all replicas and their replays; {rust}",
            vllm,
            _kv_aware,
            _tell_vllm,
            kv_events=True,
        ),
        Router("sglang-router cache_aware", f"`cache_aware`; {rust}", sglang, _sglang, _tell_sglang),
        Router("nginx", "session header, consistent; retries on another replica", nginx, _nginx, _tell_nginx),
        Router(
            "haproxy",
            f"session header, consistent; {proxies}",
            haproxy,
            _haproxy(BY_SESSION),
            _tell_haproxy(BY_SESSION),
        ),
        Router(
            "round robin", f"HAProxy; {proxies}", haproxy, _haproxy("roundrobin"), _tell_haproxy("roundrobin")
        ),
    )
    return {entry.name: entry for entry in entries}


# --- ours -------------------------------------------------------------------------------------------


def ours_with(**more: Any) -> Router:
    """Ours, with more in its config than it has in the race."""
    return replace(routers()[OURS], arguments=partial(_homing, **more))


def _homing(setting: Setting, **more: Any) -> list[str]:
    _write_replicas(setting)
    config = {
        "version": 1,
        "listen": f"127.0.0.1:{setting.port}",
        "admin": {"listen": f"127.0.0.1:{setting.spare_port}"},
        "policies": ["home"],
        "discovery": {"file": _REPLICAS_FILE},
        "probe": {"interval": "1s"},
        **more,
    }
    path = setting.folder / "router.yaml"
    path.write_text(yaml.safe_dump(config))
    return [str(setting.program), "serve", "-c", str(path), "--log-level", "warning"]


def _tell_homing(setting: Setting, process: int) -> None:
    _write_replicas(setting)
    os.kill(process, signal.SIGHUP)


def _write_replicas(setting: Setting) -> None:
    listed = [{"name": f"r{number}", "url": url} for number, url in enumerate(setting.urls)]
    # Replaced whole: whoever reads it meanwhile reads one or the other.
    fresh = setting.folder / f"{_REPLICAS_FILE}.new"
    fresh.write_text(yaml.safe_dump({"version": 1, "replicas": listed}))
    fresh.replace(setting.folder / _REPLICAS_FILE)


# --- the Rust routers -------------------------------------------------------------------------------


def _vllm(policy: str) -> Callable[[Setting], list[str]]:
    def arguments(setting: Setting) -> list[str]:
        return [
            str(setting.program),
            *("--host", "127.0.0.1", "--port", str(setting.port)),
            *("--worker-urls", *setting.urls),
            *("--policy", policy, "--health-check-interval-secs", "1"),
            *rust_router_flags(setting),
        ]

    return arguments


def _kv_aware(setting: Setting) -> list[str]:
    told = ["--kv-event-block-size", str(REPLICA.block_size), "--kv-event-model", REPLICA.model]
    # It refuses those of a replica that it is not told of at the start, and finds none of one that is added.
    for url in setting.urls:
        port = setting.kv_events[url]
        told += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{port}"]
        told += ["--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{port + REPLAY_PORT}"]
    return [*_vllm("kv_aware")(setting), *told]


def _tell_vllm(setting: Setting, _process: int) -> None:
    url = f"http://127.0.0.1:{setting.port}/add_worker?url={quote(setting.urls[-1], safe='')}"
    httpx.post(url, timeout=_TIMEOUT_S).raise_for_status()


def _sglang(setting: Setting) -> list[str]:
    return [
        str(setting.program),
        "launch",
        *("--host", "127.0.0.1", "--port", str(setting.port)),
        *("--worker-urls", *setting.urls),
        *("--policy", "cache_aware", "--health-check-interval-secs", "1"),
        *rust_router_flags(setting),
    ]


def _tell_sglang(setting: Setting, _process: int) -> None:
    url = f"http://127.0.0.1:{setting.port}/workers"
    httpx.post(url, json={"url": setting.urls[-1]}, timeout=_TIMEOUT_S).raise_for_status()


# --- the proxies ------------------------------------------------------------------------------------


def _nginx(setting: Setting) -> list[str]:
    path = setting.folder / "nginx.conf"
    path.write_text(
        nginx_configuration(
            setting.port, setting.upstreams, setting.folder, as_root=os.geteuid() == 0, retries=True
        )
    )
    return [str(setting.program), "-e", "stderr", "-p", str(setting.folder), "-c", str(path)]


def _tell_nginx(setting: Setting, process: int) -> None:
    _nginx(setting)
    os.kill(process, signal.SIGHUP)


def _haproxy(balance: str) -> Callable[[Setting], list[str]]:
    def arguments(setting: Setting) -> list[str]:
        path = setting.folder / "haproxy.cfg"
        path.write_text(haproxy_configuration(setting.port, setting.upstreams, balance=balance, retries=True))
        # With a master process, which starts the worker anew when it is told to.
        return [str(setting.program), "-W", "-db", "-f", str(path)]

    return arguments


def _tell_haproxy(balance: str) -> Callable[[Setting, int], None]:
    def tell(setting: Setting, process: int) -> None:
        _haproxy(balance)(setting)
        os.kill(process, signal.SIGUSR2)

    return tell
