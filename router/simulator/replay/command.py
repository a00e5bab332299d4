"""What `homing replay` does: reads the trace and the policies, replays, and says what came of it."""

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from router.base.errors import HomingError
from router.core.plan import Plan
from router.settings.build import build_plan
from router.settings.load import load_policy
from router.simulator.replay.compare import replay_seed
from router.simulator.replay.events import FleetEvent, check_events
from router.simulator.replay.fleet import check_names, replica_names
from router.simulator.replay.page import page
from router.simulator.replay.reading import read_trace
from router.simulator.replay.report import as_json, as_text
from router.simulator.replay.trace import Trace
from router.simulator.replay.workload import Selection
from router.simulator.settings import ReplicaSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """A replay as asked for. Capacities and rates are one replica's."""

    trace: Path
    policies: Sequence[str] = ("home",)
    """Files, or names of shipped ones. The first is what the others are compared to."""
    replicas: int = 4
    kv_tokens: int = 600_000
    host_kv_tokens: int = 0
    kv_bytes_per_token: int = 163_840
    prefill_tps: float = 8000.0
    decode_tps: float = 50.0
    prefill_double_tokens: float = 0.0
    decode_double_seqs: float = 0.0
    decode_double_tokens: float = 0.0
    step_ms: float = 0.0
    max_num_seqs: int = 256
    batch_tokens: int = 8192
    host_gbps: float = 400.0
    """0 = no host tier."""
    pull_gbps: float = 0.0
    """What each replica sends, and receives, of others' KV; 0 = no pulls."""
    gateway_kv_tokens: int = 0
    """What a KV gateway holds; 0 = there is none."""
    prefill_replicas: int = 0
    """Beside `replicas`, which then decode what these have computed."""
    one_way: bool = False
    """Prefill replicas do not fetch back what decode holds."""
    streams_offer: bool = False
    """Decode's streams say what it holds."""
    decode_pin_s: float | None = None
    """For how long decode keeps the blocks of a turn; `None` = as long as vLLM does, unless it is told."""
    events: Sequence[FleetEvent] = ()
    selection: Selection = field(default_factory=Selection)
    seeds: int = 1
    """So many, counted up from the selection's."""
    json: bool = False
    report: Path | None = None
    """An HTML page to write."""


def run_replay(options: Options) -> str:
    """Replay, write the report if one is asked for, and return what to print.

    Raises `HomingError` for a trace, a policy or a figure that is no good, or a report that cannot be
    written.
    """
    if options.gateway_kv_tokens and not options.pull_gbps:
        raise HomingError("--gateway-kv-tokens: nothing is pulled from a gateway without --pull-gbps")
    _check_pairs(options)
    try:
        check_events(options.events, replica_names(options.replicas, options.prefill_replicas))
        if options.prefill_replicas:
            check_names(options.events)
    except ValueError as error:
        raise HomingError(f"--event {error}") from error
    if options.report is not None:
        _check_place(options.report)
    plans = _plans(options.policies)
    trace = read_trace(options.trace)
    settings = _settings(options, trace.block_tokens)
    first = options.selection.seed
    results = [
        replay_seed(
            trace,
            replace(options.selection, seed=seed),
            plans,
            settings,
            options.replicas,
            pull_gbps=options.pull_gbps,
            gateway_tokens=options.gateway_kv_tokens,
            prefills=options.prefill_replicas,
            events=options.events,
        )
        for seed in range(first, first + options.seeds)
    ]
    text = as_text(_heading(options, trace), results)
    if options.report is not None:
        try:
            options.report.write_text(page(text, results), encoding="utf-8")
        except OSError as error:
            raise HomingError(f"{options.report}: {error.strerror}") from error
    if options.json:
        return json.dumps({**as_json(results), "notes": list(trace.notes)}, indent=2)
    return text


def _check_pairs(options: Options) -> None:
    back = {"--streams-offer": options.streams_offer, "--decode-pin": options.decode_pin_s is not None}
    if not options.prefill_replicas:
        for flag, given in {"--one-way": options.one_way, **back}.items():
            if given:
                raise HomingError(f"{flag}: there are no pairs without --prefill-replicas")
        return
    for flag, given in back.items():
        if given and options.one_way:
            raise HomingError(f"{flag}: with --one-way decode keeps nothing")
    if not options.pull_gbps:
        raise HomingError("--prefill-replicas: KV goes from them to the others at --pull-gbps; say how fast")
    if options.gateway_kv_tokens:
        raise HomingError("--gateway-kv-tokens: replicas of pairs push to no gateway")


def _check_place(report: Path) -> None:
    """Refuse a place where nothing can be written before all is replayed, rather than after."""
    wrong = errno.EISDIR if report.is_dir() else 0 if report.parent.is_dir() else errno.ENOENT
    if wrong:
        raise HomingError(f"{report}: {os.strerror(wrong)}")


def _plans(named: Sequence[str]) -> list[Plan]:
    plans: list[Plan] = []
    for name in named:
        plan = build_plan(load_policy(name).value)
        if any(plan.name == other.name for other in plans):
            raise HomingError(f"--policy {name}: there are two policies named {plan.name!r}; rename one")
        plans.append(plan)
    return plans


def _settings(options: Options, block_tokens: int) -> ReplicaSettings:
    blocks = options.kv_tokens // block_tokens
    if blocks < 1:
        raise HomingError(f"--kv-tokens {options.kv_tokens}: less than a block, {block_tokens} tokens here")
    settings = ReplicaSettings(
        block_size=block_tokens,
        kv_blocks=blocks + 1,  # all that is asked for can be used
        host_kv_blocks=options.host_kv_tokens // block_tokens if options.host_gbps else 0,
        prefill_tps=options.prefill_tps,
        decode_tps=options.decode_tps,
        prefill_double_tokens=options.prefill_double_tokens,
        decode_double_seqs=options.decode_double_seqs,
        decode_double_tokens=options.decode_double_tokens,
        step_ms=options.step_ms,
        max_num_seqs=options.max_num_seqs,
        batch_tokens=options.batch_tokens,
        max_model_len=blocks * block_tokens,
        host_gbps=options.host_gbps,
        two_way=not options.one_way,
        streams_offer=options.streams_offer,
        kv_bytes_per_token=options.kv_bytes_per_token,
    )
    return settings if options.decode_pin_s is None else replace(settings, decode_pin_s=options.decode_pin_s)


def _fleet(options: Options) -> str:
    if not options.prefill_replicas:
        return f"{options.replicas} replicas"
    if options.one_way:
        ways = "one way"
    else:
        offered = "and streams" if options.streams_offer else "and not streams"
        pin = "" if options.decode_pin_s is None else f" for {options.decode_pin_s:g} s"
        ways = f"decode keeps and offers whole answers {offered}{pin}"
    return f"{options.prefill_replicas} replicas that prefill, {options.replicas} that decode ({ways}), each"


def _heading(options: Options, trace: Trace) -> str:
    selection = options.selection
    if selection.rate:
        arrival = f"{selection.rate:g} sessions/s, seed {selection.seed}"
    else:
        arrival = (
            "at the trace's own times" if trace.timed else "all at once (the trace has no times; see --rate)"
        )
    heading = (
        f"{trace.name}: {arrival}; {_fleet(options)} of {options.kv_tokens:,} tokens KV"
        f" and {options.host_kv_tokens if options.host_gbps else 0:,} on the host,"
        f" {options.prefill_tps:g} tokens/s prefill"
        + (f", pulls at {options.pull_gbps:g} Gb/s" if options.pull_gbps else "")
        + (f", a gateway of {options.gateway_kv_tokens:,} tokens" if options.gateway_kv_tokens else "")
        + "".join(f"; {event.what} {event.replica} at {event.at_s:g} s" for event in options.events)
    )
    return "\n".join([heading, *(f"note: {note}" for note in trace.notes)])
