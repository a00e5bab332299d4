"""The words of the command line: its commands, the flags of each, and what their values may be.

Knows what no command does. Loads nothing heavy: a help is to be there at once.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from router.base.build import version_line

if TYPE_CHECKING:
    from router.simulator.replay.events import FleetEvent

_LEVELS: Final = ("debug", "info", "warning", "error")
_MOST_WORKERS: Final = 256


class _WithDefaults(argparse.HelpFormatter):
    """Adds the default wherever there is one and the help does not tell it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        if text is None or "default" in text or isinstance(default, bool):
            return text
        if isinstance(default, int | float):
            return f"{text} (default {default:.15g})"
        # Of flags that are not given, argparse has a word that is no default.
        return f"{text} (default {default})" if isinstance(default, str) and default[:2] != "==" else text


class _Parser(argparse.ArgumentParser):
    """argparse, with the command's help named in every usage error."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Of all commands; it puts the name of the one that was given into `command`."""
    whole = _Parser(
        prog="homing",
        description="A session-affinity router for vLLM: each turn goes to the replica that holds its KV.",
        epilog="Exit status: 0 good, 1 input that was refused (with the reason), 2 usage.",
    )
    whole.add_argument("--version", action="version", version=version_line())
    commands = whole.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)

    serve = _add(commands, "serve", "run the router")
    serve.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file (YAML); homing schema has every key",
    )
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
    _add_log_level(serve)

    demo = _add(commands, "demo", "three simulated replicas, the router, a few agent sessions")
    demo.add_argument("--keep", action="store_true", help="leave it running afterwards")

    engine = _add(commands, "engine", "run a simulated vLLM replica")
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

    for name, help_ in (
        ("kv-agent", "run the KV agent beside a vLLM replica"),
        ("kv-gateway", "run a KV gateway, the pool that agents share"),
    ):
        kv = _add(commands, name, help_)
        kv.add_argument(
            "-c",
            "--config",
            type=Path,
            metavar="FILE",
            required=True,
            help="configuration file (YAML); homing schema has every key",
        )
        _add_log_level(kv)

    check = _add(commands, "check", "check config, policy, keys and KV files: all faults at once")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="YAML, of any of these kinds")

    explain = _add(commands, "explain", "where a request would go and why; nothing is sent")
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

    replay = _add(commands, "replay", "replay a trace under policies, in virtual time")
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
        "--kv-tokens", type=_whole, default=600_000, metavar="N", help="device KV of a replica"
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
        "--prefill-replicas",
        type=_count,
        default=0,
        metavar="N",
        help="p0 and so on, beside --replicas, which then only decode; 0 = each does both",
    )
    replay.add_argument(
        "--one-way", action="store_true", help="prefill replicas fetch nothing back from those that decode"
    )
    replay.add_argument(
        "--streams-offer", action="store_true", help="streams say what decode holds, as from vLLM 0.33 on"
    )
    replay.add_argument(
        "--decode-pin",
        type=_duration,
        metavar="TIME",
        help="for which decode keeps a turn's blocks (default 480s)",
    )
    replay.add_argument(
        "--event",
        action="append",
        type=_event,
        default=[],
        metavar="WHAT:REPLICA@TIME",
        help="add, drain, undrain, kill or start a replica: kill:r0@10m; may be repeated. With"
        " --prefill-replicas, add:p9@10m adds one that prefills, add:r9@10m one that decodes",
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

    _add(commands, "schema", "print the JSON schema of config, policy, keys and KV files")
    return whole


def _add(commands: "argparse._SubParsersAction[_Parser]", name: str, text: str) -> argparse.ArgumentParser:
    """A command, described by the same words in the list of all and in its own help."""
    return commands.add_parser(
        name, help=text, description=f"{text[:1].upper()}{text[1:]}.", formatter_class=_WithDefaults
    )


def _add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-level", choices=_LEVELS, default="info", help="what is logged, and all above")


def _add_growth(parser: argparse.ArgumentParser) -> None:
    """How the costs of a replica grow, which both the engine and a replay simulate."""
    for flag, unit, text in (
        ("--prefill-double-tokens", "TOKENS", "a prompt token with so many before it costs twice; 0 = none"),
        (
            "--decode-double-seqs",
            "N",
            "so many sequences more make a decode step last twice as long; 0 = none",
        ),
        (
            "--decode-double-tokens",
            "TOKENS",
            "so many tokens make a decode step last twice as long; 0 = none",
        ),
        ("--step-ms", "MS", "what a step without decodes takes beside its tokens"),
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
