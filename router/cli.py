"""The command line. Exit status: 0 good, 1 input that was refused (with the reason), 2 usage."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeVar

from router import __version__
from router.base.build import kind_of_build
from router.base.errors import HomingError, SettingsError
from router.base.heap import settle_heap
from router.base.system import allow_open_files
from router.base.tasks import TaskOwner, first_of

if TYPE_CHECKING:
    from router.controlplane.place import Place
    from router.controlplane.reload import Read
    from router.kv.agent import Agent
    from router.kv.gateway import Gateway
    from router.settings.compare import Settings
    from router.settings.config import RouterConfig
    from router.simulator.replay.events import FleetEvent
    from router.supervisor import Supervisor
    from router.wiring import Router

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LEVELS: Final = ("debug", "info", "warning", "error")
_MOST_WORKERS: Final = 256


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    _open_standard_streams()
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return run(arguments)
    except SettingsError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return 1
    except HomingError as error:
        print(f"homing: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not complain about it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


# --- commands ---------------------------------------------------------------------------------------
# Each imports what it needs when it runs, so that `homing --help` and `homing check` start at once.


def _serve(arguments: argparse.Namespace) -> int:
    from router.controlplane.place import read_place
    from router.settings.compare import Settings
    from router.settings.credentials import load_secrets
    from router.settings.flags import config_from_flags
    from router.settings.load import load_config

    def read(code: Container[str] | None) -> Settings:
        base = load_config(arguments.config, code) if arguments.config is not None else None
        loaded = config_from_flags(
            arguments.replica, arguments.policy, arguments.listen, arguments.admin, base=base, code=code
        )
        return Settings(loaded, load_secrets(loaded, os.environ), os.environ)

    place = read_place(arguments.worker) if arguments.worker is not None else None
    settings = read(None)
    _log_to_stderr(arguments, f"worker {place.number}: " if place is not None else "")
    allow_open_files()
    if place is not None:
        return _run(_work_until_stopped(settings, read, place))
    if arguments.workers > 1:
        return _run(_supervise_until_stopped(settings, arguments.workers, _worker_command(arguments)))
    return _run(_serve_until_stopped(settings, read))


def _worker_command(arguments: argparse.Namespace) -> list[str]:
    """What starts a worker of this very router, but for its place."""
    command = [sys.executable, "-P", "-m", "router.cli", "serve", "--log-level", arguments.log_level]
    for flag in ("config", "policy", "listen", "admin"):
        if (value := getattr(arguments, flag)) is not None:
            command += [f"--{flag}", str(value)]
    for url in arguments.replica:
        command += ["--replica", url]
    return [*command, "--worker"]


def _log_to_stderr(arguments: argparse.Namespace, who: str = "") -> None:
    logging.basicConfig(
        level=arguments.log_level.upper(), format=f"%(asctime)s %(levelname)s {who}%(name)s: %(message)s"
    )
    # A log that cannot be written, on a full disk say, must not be reported in the same place.
    logging.raiseExceptions = False


async def _serve_until_stopped(settings: "Settings", read: "Read") -> int:
    from router.wiring import Router

    router = Router(settings.loaded, settings.secrets, environ=settings.environ, read=read)
    for notice in router.notices:
        _say(f"note: {notice}", sys.stderr)
    if not router.config.replicas and not router.config.discovery:
        _say("note: no replicas: every request is refused; give --replica or a config", sys.stderr)
    reloads = TaskOwner()
    _reload_at_hangup(router, reloads)
    stop = _stop_event()
    try:
        handed_over = router.succession.handed_over
        await first_of(router.start(), stop.wait())
        if not stop.is_set():
            settle_heap()
            _announce(router)
            await first_of(stop.wait(), handed_over.wait())
        grace_s = _farewell(router.config, handed_over.is_set())
        stop.clear()
        await first_of(router.close(grace_s), stop.wait())
    finally:
        await reloads.close()
        await router.close()
    return 0


def _farewell(config: "RouterConfig", handed_over: bool) -> float:
    """Say that this is the end; returns the seconds that running turns get."""
    if handed_over:
        _say("homing: a successor has taken over; running turns may end", sys.stderr)
        return config.restart.linger
    _say("homing: stopping; running turns may end (once more: at once)", sys.stderr)
    return config.restart.grace


async def _work_until_stopped(settings: "Settings", read: "Read", place: "Place") -> int:
    from router.wiring import Router
    from router.worker import Worker

    router = Router(settings.loaded, settings.secrets, environ=settings.environ, read=read, place=place)
    reloads = TaskOwner()
    _reload_at_hangup(router, reloads)
    stop = _stop_event()
    try:
        await Worker(router, place).run(stop)
    finally:
        await reloads.close()
    return 0


async def _supervise_until_stopped(settings: "Settings", count: int, command: Sequence[str]) -> int:
    from router.supervisor import Supervisor

    supervisor = Supervisor(settings, count, command)
    for notice in supervisor.notices:
        _say(f"note: {notice}", sys.stderr)
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, supervisor.reload)
    stop = _stop_event()
    handed_over = supervisor.succession.handed_over
    try:
        await first_of(supervisor.start(), stop.wait())
        if not stop.is_set():
            await _announce_crew(supervisor)
            await first_of(stop.wait(), handed_over.wait())
        grace_s = _farewell(settings.loaded.value, handed_over.is_set())
        stop.clear()
        await first_of(supervisor.close(grace_s), stop.wait())
    finally:
        await supervisor.close()
    return 0


def _version() -> str:
    return f"homing {__version__} ({kind_of_build()})"


def _announce(router: "Router") -> None:
    fleet = router.engine.replicas(router.clock.now())
    _say(
        _served(
            router.config,
            router.dataplane.port,
            router.admin.port,
            [status.health for status in fleet],
            router.engine.plans[0].name,
        )
    )
    for status in fleet:
        if status.health != "healthy":
            _say(f"  {status.id} {status.url}: {status.health} {status.why}".rstrip())
    if router.secrets.admin_token is None:
        _say(f"admin token for writes, made up for this run: {router.admin.token}")


async def _announce_crew(supervisor: "Supervisor") -> None:
    fleet = await supervisor.fleet()
    health = [str(replica["health"]) for replica in fleet]
    line = _served(supervisor.config, supervisor.crew.port, supervisor.admin.port, health, supervisor.policy)
    _say(f"{line}; {len(supervisor.crew)} workers")
    for replica in fleet:
        if replica["health"] != "healthy":
            _say(f"  {replica['name']} {replica['url']}: {replica['health']} {replica['why']}".rstrip())
    if supervisor.secrets.admin_token is None:
        _say(f"admin token for writes, made up for this run: {supervisor.admin.token}")


def _served(config: "RouterConfig", port: int, admin_port: int, health: Sequence[str], policy: str) -> str:
    well = sum(state == "healthy" for state in health)
    replicas = "1 replica" if len(health) == 1 else f"{len(health)} replicas"
    return (
        f"{_version()}: {'http' if config.tls is None else 'https'}://{config.listen.host}:{port}"
        f" -> {replicas} ({well} healthy), policy {policy};"
        f" admin http://{config.admin.listen.host}:{admin_port}"
    )


def _say(line: str, stream: TextIO | None = None) -> None:
    """Print a line, to standard output unless told otherwise. That nobody can read it must not stop a router:
    the stream may be closed, or on a disk that is full."""
    with suppress(OSError, ValueError):
        print(line, file=stream if stream is not None else sys.stdout, flush=True)


def _reload_at_hangup(router: "Router", tasks: TaskOwner) -> None:
    """Read config and policies anew at SIGHUP. Left alone, the signal would kill."""
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: tasks.spawn(router.reloader.reload("SIGHUP"), name="reload at SIGHUP")
        )


def _demo(arguments: argparse.Namespace) -> int:
    from router.demo import run_demo

    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    return _run(run_demo(keep=arguments.keep, stop_event=_stop_event))


def _engine(arguments: argparse.Namespace) -> int:
    from router.settings.kv import load_kv_agent
    from router.simulator.agent import KvBeside
    from router.simulator.server import serve
    from router.simulator.settings import ReplicaSettings

    settings = ReplicaSettings(
        name=arguments.name,
        model=arguments.model,
        block_size=arguments.block_size,
        kv_blocks=arguments.kv_blocks,
        host_kv_blocks=arguments.host_kv_blocks,
        prefill_tps=arguments.prefill_tps,
        decode_tps=arguments.decode_tps,
        prefill_double_tokens=arguments.prefill_double_tokens,
        decode_double_seqs=arguments.decode_double_seqs,
        decode_double_tokens=arguments.decode_double_tokens,
        step_ms=arguments.step_ms,
        max_num_seqs=arguments.max_num_seqs,
        batch_tokens=arguments.batch_tokens,
        time_scale=arguments.time_scale,
        kv_events=arguments.kv_events,
    )

    def ready(url: str) -> None:
        print(f"simulated replica {settings.name} ({settings.model}): {url}", flush=True)

    kv = None
    if arguments.kv_agent is not None:
        kv = KvBeside(
            config=load_kv_agent(arguments.kv_agent, os.environ),
            pull_gbps=arguments.pull_gbps,
            pull_failures=arguments.pull_failures,
            p2p=arguments.kv_p2p,
        )
    return _run(serve(settings, arguments.host, arguments.port, kv=kv, ready=ready))


def _kv_agent(arguments: argparse.Namespace) -> int:
    from router.kv.agent import Agent
    from router.settings.kv import load_kv_agent

    config = load_kv_agent(arguments.config, os.environ)
    _log_to_stderr(arguments)
    return _run(_serve_kv(Agent(config), f"KV agent {config.name}: {config.host}"))


def _kv_gateway(arguments: argparse.Namespace) -> int:
    from router.kv.gateway import Gateway
    from router.settings.kv import load_kv_gateway

    config = load_kv_gateway(arguments.config, os.environ)
    _log_to_stderr(arguments)
    return _run(_serve_kv(Gateway(config), f"KV gateway {config.name}: {config.host}"))


async def _serve_kv(server: "Agent | Gateway", title: str) -> int:
    stop = _stop_event()
    try:
        await server.start()
        settle_heap()
        metrics = "" if server.config.metrics_port is None else f"; metrics on port {server.metrics.port}"
        _say(f"{title}:{server.server.port}{metrics}")
        await stop.wait()
    except OSError as error:
        raise HomingError(f"{title}: {error.strerror or error}") from error
    finally:
        await server.close()
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from router.settings.check import check_files

    result = check_files(arguments.files, os.environ)
    for fault in result.faults:
        print(fault)
    for notice in result.notices:
        print(f"note: {notice}")
    if result.faults:
        return 1
    print(f"{len(arguments.files)} file{'s' if len(arguments.files) != 1 else ''}: no faults")
    return 0


def _schema(_arguments: argparse.Namespace) -> int:
    from router.settings.check import schema

    print(json.dumps(schema(), indent=2))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from router.explain import ask_admin, explain_here, render

    try:
        body = arguments.body.read_bytes() if str(arguments.body) != "-" else sys.stdin.buffer.read()
    except OSError as error:
        raise HomingError(f"{arguments.body}: {error.strerror}") from error
    if arguments.admin is not None:
        answer: Mapping[str, Any] = ask_admin(
            arguments.admin,
            body,
            path=arguments.path,
            session=arguments.session,
            tenant=arguments.tenant,
            token=os.environ.get("HOMING_ADMIN_TOKEN"),
        )
    else:
        answer = _run(
            explain_here(
                arguments.config,
                body,
                path=arguments.path,
                session=arguments.session,
                tenant=arguments.tenant,
            )
        )
    print(json.dumps(answer, indent=2) if arguments.json else render(answer))
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from router.simulator.replay.command import Options, run_replay
    from router.simulator.replay.workload import Selection

    options = Options(
        trace=arguments.trace,
        policies=arguments.policy or ["home"],
        replicas=arguments.replicas,
        kv_tokens=arguments.kv_tokens,
        host_kv_tokens=arguments.host_kv_tokens,
        kv_bytes_per_token=arguments.kv_bytes_per_token,
        prefill_tps=arguments.prefill_tps,
        decode_tps=arguments.decode_tps,
        prefill_double_tokens=arguments.prefill_double_tokens,
        decode_double_seqs=arguments.decode_double_seqs,
        decode_double_tokens=arguments.decode_double_tokens,
        step_ms=arguments.step_ms,
        max_num_seqs=arguments.max_num_seqs,
        batch_tokens=arguments.batch_tokens,
        host_gbps=arguments.host_gbps,
        pull_gbps=arguments.pull_gbps,
        gateway_kv_tokens=arguments.gateway_kv_tokens,
        events=arguments.event,
        selection=Selection(
            rate=arguments.rate,
            sessions=arguments.sessions,
            max_turns=arguments.max_turns,
            think_cap_s=arguments.think_cap,
            seed=arguments.seed,
        ),
        seeds=arguments.seeds,
        json=arguments.json,
        report=arguments.report,
    )
    print(run_replay(options))
    return 0


# --- plumbing ---------------------------------------------------------------------------------------


def _open_standard_streams() -> None:
    """Put the null device where standard output or error is closed. Else the next file or connection that is
    opened takes its number, and gets whatever the process writes there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == number, "the lowest number that is free is taken"
            setattr(sys, name, os.fdopen(opened, "r" if name == "stdin" else "w", closefd=False))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where it is installed, else on asyncio."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # Windows, or a Python without a wheel of it
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def _stop_event() -> asyncio.Event:
    """Set by SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


class _WithFigures(argparse.HelpFormatter):
    """Adds the default wherever it is a number and the help does not tell it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        if (
            text is None
            or "default" in text
            or isinstance(default, bool)
            or not isinstance(default, int | float)
        ):
            return text
        return f"{text} (default {default:.15g})"


class _Parser(argparse.ArgumentParser):
    """argparse, with the command's help named in every usage error."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="homing",
        description="A session-affinity router for vLLM: each turn goes to the replica that holds its KV.",
        epilog="Exit status: 0 good, 1 input that was refused (with the reason), 2 usage.",
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the router")
    serve.add_argument("-c", "--config", type=Path, metavar="FILE", help="configuration file (YAML)")
    serve.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="URL",
        help="a vLLM server, http://host:port; may be repeated; enough without a config",
    )
    serve.add_argument("--policy", metavar="FILE|NAME", help="the default policy: a file, or a shipped one")
    serve.add_argument("--listen", metavar="HOST:PORT", help="data port (default 127.0.0.1:8080)")
    serve.add_argument("--admin", metavar="HOST:PORT", help="admin port (default 127.0.0.1:9090)")
    serve.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help="processes that share the work, about one a core (default 1)",
    )
    serve.add_argument("--worker", help=argparse.SUPPRESS)
    serve.add_argument("--log-level", choices=_LEVELS, default="info")
    serve.set_defaults(run=_serve)

    demo = commands.add_parser("demo", help="three simulated replicas, the router, a few agent sessions")
    demo.add_argument("--keep", action="store_true", help="leave it running afterwards")
    demo.set_defaults(run=_demo)

    engine = commands.add_parser(
        "engine",
        help="run a simulated vLLM replica",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    engine.add_argument("--host", default="127.0.0.1", help="address to listen on")
    engine.add_argument("--port", type=_port, required=True, default=argparse.SUPPRESS, help="0: any")
    engine.add_argument("--name", default="sim", help="what it calls itself")
    engine.add_argument("--model", default="sim-model", help="what it serves")
    engine.add_argument("--block-size", type=int, default=16, metavar="TOKENS", help="of KV")
    engine.add_argument(
        "--kv-blocks", type=int, default=37_500, metavar="N", help="device KV; one is never used"
    )
    engine.add_argument("--host-kv-blocks", type=int, default=0, metavar="N", help="host KV; 0 = none")
    engine.add_argument(
        "--prefill-tps", type=float, default=8000.0, metavar="N", help="prompt tokens a second"
    )
    engine.add_argument(
        "--decode-tps", type=float, default=50.0, metavar="N", help="tokens a second a sequence"
    )
    _add_growth(engine)
    engine.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="running at once")
    engine.add_argument("--batch-tokens", type=int, default=8192, metavar="N", help="tokens a step")
    engine.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="simulated seconds a real second"
    )
    engine.add_argument(
        "--kv-events",
        type=_port,
        default=0,
        metavar="PORT",
        help="publish KV events over ZMQ, and replay them on the tenth port above it; 0 = none",
    )
    engine.add_argument(
        "--kv-agent",
        type=Path,
        metavar="FILE",
        help="put a simulated KV agent beside it, by a file as for `homing kv-agent`",
    )
    engine.add_argument(
        "--kv-p2p", action="store_true", help="it is vLLM's own P2P tier: requests name the peer to pull from"
    )
    engine.add_argument(
        "--pull-gbps", type=float, default=100.0, metavar="N", help="gigabits a second of its KV agent"
    )
    engine.add_argument(
        "--pull-failures", type=float, default=0.0, metavar="SHARE", help="of pulls that fall silent half-way"
    )
    engine.set_defaults(run=_engine)

    for name, help_, run in (
        ("kv-agent", "run the KV agent beside a vLLM replica", _kv_agent),
        ("kv-gateway", "run a KV gateway, the pool that agents share", _kv_gateway),
    ):
        kv = commands.add_parser(name, help=help_)
        kv.add_argument("-c", "--config", type=Path, metavar="FILE", required=True, help="its file (YAML)")
        kv.add_argument("--log-level", choices=_LEVELS, default="info")
        kv.set_defaults(run=run)

    check = commands.add_parser("check", help="check config and policy files: all faults at once")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    check.set_defaults(run=_check)

    explain = commands.add_parser("explain", help="where a request would go and why; nothing is sent")
    source = explain.add_mutually_exclusive_group(required=True)
    source.add_argument("-c", "--config", type=Path, metavar="FILE", help="a fresh router with this config")
    source.add_argument("--admin", metavar="URL", help="a running router's admin port")
    explain.add_argument(
        "body", type=Path, metavar="BODY.json", help="the request body; - for standard input"
    )
    explain.add_argument("--session", metavar="ID", help="the session id that the client would send")
    explain.add_argument("--tenant", metavar="NAME", help="the tenant of the client's key (default: none)")
    explain.add_argument("--path", default="/v1/chat/completions", help="default %(default)s")
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(run=_explain)

    replay = commands.add_parser(
        "replay", help="replay a trace under policies, in virtual time", formatter_class=_WithFigures
    )
    replay.add_argument(
        "trace", type=Path, metavar="TRACE", help="sessions, Mooncake's JSONL or an access log, maybe gzip"
    )
    replay.add_argument(
        "--policy",
        action="append",
        metavar="FILE|NAME",
        help="may be repeated: the others are compared to the first (default home)",
    )
    replay.add_argument("--replicas", type=_whole, default=4, metavar="N", help="of the fleet")
    replay.add_argument(
        "--kv-tokens", type=_whole, default=600_000, metavar="N", help="device KV; one is never used"
    )
    replay.add_argument("--host-kv-tokens", type=_count, default=0, metavar="N", help="host KV; 0 = none")
    replay.add_argument("--kv-bytes-per-token", type=_whole, default=163_840, metavar="N", help="its size")
    replay.add_argument(
        "--prefill-tps", type=_rate, default=8000.0, metavar="N", help="prompt tokens a second"
    )
    replay.add_argument(
        "--decode-tps", type=_rate, default=50.0, metavar="N", help="tokens a second a sequence"
    )
    _add_growth(replay)
    replay.add_argument("--max-num-seqs", type=_whole, default=256, metavar="N", help="running at once")
    replay.add_argument("--batch-tokens", type=_whole, default=8192, metavar="N", help="tokens a step")
    replay.add_argument(
        "--host-gbps", type=_rate_or_none, default=400.0, metavar="N", help="host to device; 0 = no host KV"
    )
    replay.add_argument(
        "--pull-gbps", type=_rate_or_none, default=0.0, metavar="N", help="between replicas; 0 = none"
    )
    replay.add_argument(
        "--gateway-kv-tokens", type=_count, default=0, metavar="N", help="of a KV gateway; 0 = there is none"
    )
    replay.add_argument(
        "--event",
        action="append",
        type=_event,
        default=[],
        metavar="WHAT:REPLICA@TIME",
        help="add, drain, undrain, kill or start a replica: kill:r0@10m; may be repeated",
    )
    replay.add_argument(
        "--rate",
        type=_rate_or_none,
        default=0.0,
        metavar="N",
        help="sessions that begin a second, at random; 0 = at the trace's own times (default)",
    )
    replay.add_argument("--sessions", type=_whole, metavar="N", help="so many of the trace's (default all)")
    replay.add_argument(
        "--max-turns",
        type=_whole,
        metavar="N",
        help="a session's at most, sub-agents' not counted (default all)",
    )
    replay.add_argument(
        "--think-cap",
        type=_duration,
        default=600.0,
        metavar="TIME",
        help="the longest pause between two turns (default 600s)",
    )
    replay.add_argument("--seed", type=_count, default=0, metavar="N", help="of all that is drawn by lot")
    replay.add_argument("--seeds", type=_whole, default=1, metavar="N", help="runs, each with the next seed")
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.add_argument("--report", type=Path, metavar="FILE", help="write an HTML page with plots")
    replay.set_defaults(run=_replay)

    schema = commands.add_parser("schema", help="print the JSON schema of config and policy files")
    schema.set_defaults(run=_schema)
    return parser


def _add_growth(parser: argparse.ArgumentParser) -> None:
    """How the costs of a replica grow, which both the engine and a replay simulate."""
    for flag, unit, text in (
        ("--prefill-double-tokens", "TOKENS", "before it make a prompt token cost twice; 0 = none do"),
        ("--decode-double-seqs", "N", "sequences more make a decode step take twice as long; 0 = none do"),
        ("--decode-double-tokens", "TOKENS", "decoding make a step take twice as long; 0 = none do"),
        ("--step-ms", "MS", "a step without decodes takes beside its tokens"),
    ):
        parser.add_argument(flag, type=_rate_or_none, default=0.0, metavar=unit, help=text)


def _port(text: str) -> int:
    port = int(text) if text.isdigit() else -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return port


def _count(text: str) -> int:
    """A whole number from 0 up. The length is bounded, as Python refuses to read a longer one."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _whole(text: str) -> int:
    if (number := _count(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _workers(text: str) -> int:
    if (number := _whole(text)) > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} are more than the {_MOST_WORKERS} that can be meant")
    return number


def _rate_or_none(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def _rate(text: str) -> float:
    if not (number := _rate_or_none(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def _event(text: str) -> "FleetEvent":
    from router.simulator.replay.events import parse_event

    try:
        return parse_event(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _duration(text: str) -> float:
    from router.base.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
