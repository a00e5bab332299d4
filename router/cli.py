"""The command line. Exit status: 0 good, 1 input that was refused (with the reason), 2 usage."""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from router.arguments import parser
from router.base.errors import HomingError, SettingsError
from router.base.heap import settle_heap
from router.process import log_to_stderr, open_standard_streams, run, say, stop_event

if TYPE_CHECKING:
    from router.kv.agent import Agent
    from router.kv.gateway import Gateway


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    open_standard_streams()
    arguments = parser().parse_args(argv)
    try:
        return COMMANDS[arguments.command](arguments)
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


# Each imports what it needs when it runs, so that `homing --help` and `homing check` start at once.


def _serve(arguments: argparse.Namespace) -> int:
    from router.serving import serve

    return serve(arguments)


def _demo(arguments: argparse.Namespace) -> int:
    from router.demo import run_demo

    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    return run(run_demo(keep=arguments.keep, stop_event=stop_event))


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
    elif arguments.kv_p2p or arguments.pull_failures:
        flag = "--kv-p2p" if arguments.kv_p2p else "--pull-failures"
        raise HomingError(f"{flag}: there is no KV agent that it could be of; give --kv-agent")
    return run(serve(settings, arguments.host, arguments.port, kv=kv, ready=ready))


def _kv_agent(arguments: argparse.Namespace) -> int:
    from router.kv.agent import Agent
    from router.settings.kv import load_kv_agent

    config = load_kv_agent(arguments.config, os.environ)
    log_to_stderr(arguments.log_level)
    return run(_serve_kv(Agent(config), f"KV agent {config.name}"))


def _kv_gateway(arguments: argparse.Namespace) -> int:
    from router.kv.gateway import Gateway
    from router.settings.kv import load_kv_gateway

    config = load_kv_gateway(arguments.config, os.environ)
    log_to_stderr(arguments.log_level)
    return run(_serve_kv(Gateway(config), f"KV gateway {config.name}"))


async def _serve_kv(server: "Agent | Gateway", title: str) -> int:
    stop = stop_event()
    try:
        await server.start()
        settle_heap()
        metrics = "" if server.config.metrics_port is None else f"; metrics on port {server.metrics.port}"
        say(f"{title}: {server.config.host}:{server.server.port}{metrics}")
        await stop.wait()
    except OSError as error:
        # A folder's or a file's error names it beside its words.
        place = f"{error.filename}: " if error.filename else ""
        raise HomingError(f"{title}: {place}{error.strerror or error}") from error
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
        answer = run(
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
        prefill_replicas=arguments.prefill_replicas,
        one_way=arguments.one_way,
        streams_offer=arguments.streams_offer,
        decode_pin_s=arguments.decode_pin,
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


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "serve": _serve,
    "demo": _demo,
    "engine": _engine,
    "kv-agent": _kv_agent,
    "kv-gateway": _kv_gateway,
    "check": _check,
    "explain": _explain,
    "replay": _replay,
    "schema": _schema,
}


if __name__ == "__main__":
    sys.exit(main())
