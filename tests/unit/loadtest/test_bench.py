"""The bench: what it sends, how it counts, what it says; and that nothing it starts stays behind."""

import asyncio
import json
import math
import os
import select
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import httptools
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pages import table

from loadtest.bench import answers, debian, machine, processes, replica, report
from loadtest.bench.__main__ import main
from loadtest.bench.client import Clients, Homes
from loadtest.bench.command import Command
from loadtest.bench.contenders import (
    Setting,
    contenders,
    haproxy_configuration,
    nginx_configuration,
)
from loadtest.bench.errors import BenchError
from loadtest.bench.figures import Sample, percentile, summarise, turn_order, verdicts
from loadtest.bench.loads import CHUNKS, LOADS, SESSIONS, TURNS, chat_body, requests

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the bench is Linux only")

BY_NAME = {load.name: load for load in LOADS}


# --- what is sent -----------------------------------------------------------------------------------


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_a_body_has_its_nominal_length_at_about_1_kb_a_message(load):
    bodies = [chat_body(load, 5, turn) for turn in range(len(requests(load)[5]))]
    assert sum(map(len, bodies)) / len(bodies) == pytest.approx(load.body_bytes, rel=0.05)
    for body in bodies:
        asked = json.loads(body)
        assert len(body) == pytest.approx(1000 * len(asked["messages"]), rel=0.05)
        assert asked.get("stream", False) is load.streams


def test_each_turn_of_a_session_has_one_message_more_than_the_one_before():
    turns = [json.loads(chat_body(BY_NAME["32k"], 5, turn))["messages"] for turn in range(TURNS)]
    for before, after in pairwise(turns):
        assert after[:-1] == before
    assert len(requests(BY_NAME["2k"])[5]) == 1


def test_sessions_share_their_system_prompt_and_nothing_else():
    messages = [json.loads(chat_body(BY_NAME["32k"], session))["messages"] for session in (0, 1)]
    assert messages[0][0] == messages[1][0]
    assert all(one != other for one, other in zip(messages[0][1:], messages[1][1:], strict=True))


def test_each_session_has_a_whole_request_with_an_id_of_its_own():
    ids = set()
    for turns in requests(BY_NAME["32k"]):
        head, _, body = b"".join(turns[3]).partition(b"\r\n\r\n")
        fields = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
        assert int(fields[b"Content-Length"]) == len(body)
        ids.add(fields[b"X-Session-ID"])
    assert len(ids) == SESSIONS == 97


def test_a_shortened_load_still_uses_every_connection():
    assert BY_NAME["2k"].shortened(5).requests == 2_000
    assert BY_NAME["stream"].shortened(5).requests == 200


def test_a_streams_processor_time_is_divided_by_its_chunks():
    assert (BY_NAME["stream"].units, BY_NAME["stream"].unit) == (600 * 50, "chunk")
    assert (BY_NAME["2k"].units, BY_NAME["2k"].unit) == (10_000, "request")


# --- what is answered -------------------------------------------------------------------------------


class Reader:
    """Puts a body together again."""

    def __init__(self):
        self.body = b""
        self.complete = False

    def on_body(self, piece):
        self.body += piece

    def on_message_complete(self):
        self.complete = True


def test_a_stamped_chunk_is_as_long_as_it_says():
    reader = Reader()
    parser = httptools.HttpResponseParser(reader)
    parser.feed_data(answers.STREAM_HEAD)
    for last in (False, True):
        parser.feed_data(answers.chunked(answers.token_event(3, last=last)) % 2**60)
    parser.feed_data(answers.chunked(answers.DONE_EVENT) + answers.LAST_CHUNK)
    assert reader.complete
    events = reader.body.split(b"\n\n")
    assert json.loads(events[0].removeprefix(b"data: "))["choices"][0]["finish_reason"] is None
    assert json.loads(events[1].removeprefix(b"data: "))["choices"][0]["finish_reason"] == "stop"


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=5), st.integers(0, 2000))
def test_every_stamp_that_is_whole_in_a_piece_is_read_and_no_other(times, cut):
    piece = b"".join(answers.token_event(0, last=False) % at for at in times)[:cut]
    event_bytes = len(answers.token_event(0, last=False) % 0)
    stamp_end = (answers.token_event(0, last=False) % 0).index(b'"},"logprobs"')
    whole = sum(index * event_bytes + stamp_end <= len(piece) for index in range(len(times)))
    assert answers.stamps(piece) == times[:whole]


def test_every_answer_names_its_replica_where_the_client_looks():
    chat = answers.chat_body(7)
    event = answers.token_event(7, last=False)
    assert chat[answers.CHAT_MARK_AT :][:2] == b"07"
    assert event[answers.STREAM_MARK_AT :][:2] == b"07"
    assert "r07" in json.loads(chat)["id"]


def test_the_metrics_page_is_as_long_as_a_replicas_and_has_what_a_router_reads():
    page = answers.metrics_page()
    assert 20_000 < len(page) < 100_000
    for name in (
        b"vllm:num_requests_running",
        b"vllm:kv_cache_usage_perc",
        b"num_gpu_blocks=",
        b"start_time",
    ):
        assert name in page


# --- the load, against the replicas -----------------------------------------------------------------


@pytest.fixture
def few():
    """A load small enough for a test."""
    return BY_NAME["2k"]._replace(connections=3, requests=50)


@pytest.fixture
async def serve():
    """Serves a connection class or a replica on loopback and gives the port."""
    servers = []

    async def start(factory):
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        servers.append(server)
        return server.sockets[0].getsockname()[1]

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


async def drive(port, load, *, homes=None, named=False):
    homes = Homes() if homes is None else homes
    clients = Clients(port, load, requests(load), homes, named=named)
    try:
        return await clients.run(load.requests), homes
    finally:
        clients.close()
        await asyncio.sleep(0)


async def test_right_answers_are_counted_with_their_latency(serve, few):
    port = await serve(lambda: replica.Connection(replica.Replica(1, 0.0)))
    brought, homes = await drive(port, few)
    assert (brought.failed, len(brought.latencies_s), brought.delays_s) == (0, 50, [])
    assert set(homes.replicas.values()) == {b"01"}
    assert len(homes.replicas) == 50
    assert not homes.moved
    assert 0 < max(brought.latencies_s) <= brought.elapsed_s


async def test_a_stream_brings_every_chunk_with_its_delay_and_no_usage(serve, few, monkeypatch):
    monkeypatch.setattr(replica, "STEP_S", 0.0005)
    port = await serve(lambda: replica.Connection(replica.Replica(1, 0.0)))
    load = few._replace(streams=True, requests=6)
    brought, homes = await drive(port, load)
    assert (brought.failed, len(brought.delays_s)) == (0, 6 * CHUNKS)
    assert all(0 < delay < brought.elapsed_s for delay in brought.delays_s)
    assert set(homes.replicas.values()) == {b"01"}


async def test_a_replica_reports_usage_of_a_stream_to_whom_asked_for_it(serve, few, monkeypatch):
    monkeypatch.setattr(replica, "STEP_S", 0.0005)
    port = await serve(lambda: replica.Connection(replica.Replica(1, 0.0)))
    body = chat_body(few._replace(streams=True), 0)
    asked = b'{"stream_options":{"include_usage":true},' + body[1:]
    got = []
    for sent in (body, asked):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(sent) + sent)
        got.append(await reader.readuntil(answers.LAST_CHUNK))
        writer.close()
        await writer.wait_closed()
    assert [b'"usage"' in answer for answer in got] == [False, True]
    assert [answer.count(b"data: {") for answer in got] == [CHUNKS, CHUNKS + 1]


async def test_a_replica_answers_what_a_router_asks_beside(serve):
    port = await serve(lambda: replica.Connection(replica.Replica(0, 0.0)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    statuses = []
    for path in (b"/health", b"/metrics?x=1", b"/v1/models", b"/server_info"):
        writer.write(b"GET %b HTTP/1.1\r\n\r\n" % path)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        await reader.readexactly(length)
        statuses.append(head.split()[1])
    assert statuses == [b"200", b"200", b"200", b"404"]
    writer.close()
    await writer.wait_closed()


class Canned(asyncio.Protocol):
    """Answers every request with the next of some bytes; `None` closes the connection."""

    turns: list[bytes | None]

    def connection_made(self, transport):
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_message_complete(self):
        answer = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if answer is None:
            self.transport.close()
        else:
            self.transport.write(answer)


def canned(*turns):
    return type("CannedTurns", (Canned,), {"turns": list(turns)})


def answer(mark, header=b"", status=b"200 OK"):
    whole = answers.plain(status, b"application/json", answers.chat_body(mark))
    return whole.replace(b"server: uvicorn", header or b"server: uvicorn")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(answer(0, status=b"503 Service Unavailable"), id="another status"),
        pytest.param(answers.plain(b"200 OK", b"application/json", b'{"id":"chatcmpl-r00"}'), id="too short"),
        pytest.param(None, id="connection closed"),
        pytest.param(b"garbage\r\n\r\n", id="not HTTP"),
    ],
)
async def test_a_wrong_answer_is_a_failure(serve, few, bad):
    port = await serve(canned(bad, answer(0)))
    brought, _ = await drive(port, few)
    assert (brought.failed, len(brought.latencies_s)) == (1, 49)


async def test_requests_that_nobody_can_take_have_failed(serve, few):
    port = await serve(canned(None))
    brought, _ = await drive(port, few)
    assert (brought.failed, brought.latencies_s) == (50, [])


async def test_what_is_not_answered_in_time_has_failed(serve, few, monkeypatch):
    monkeypatch.setattr(type(few), "deadline_s", 0.05)
    port = await serve(canned(answer(0), b""))
    brought, _ = await drive(port, few)
    assert (brought.failed, len(brought.latencies_s)) == (49, 1)


async def test_a_session_that_another_replica_answers_has_moved(serve, few):
    homes = Homes()
    port = await serve(canned(answer(0)))
    await drive(port, few, homes=homes)
    port = await serve(canned(answer(1), answer(0)))
    await drive(port, few, homes=homes)
    assert homes.moved == {0}


async def test_our_header_must_name_the_replica_that_answered(serve, few):
    right = answer(0, b"X-Homing-Replica: r0")
    port = await serve(canned(right, answer(1, b"x-homing-replica: r0"), answer(0), right))
    _, homes = await drive(port, few, named=True)
    assert homes.misnamed == 2
    assert homes.names == {b"r0": b"00"}


# --- figures ----------------------------------------------------------------------------------------


def sample(round, proxy, cpu_us, *, p50_ms=1.0, p99_ms=2.0, **more):
    filled = {"load": "2k", "per_s": 100.0, "core": 0.5, "others": 0.0, "gauge_ms": 8.0, "disturbed": False}
    filled |= {"failed": 0, "moved": 0, "misnamed": 0}
    return Sample(round=round, proxy=proxy, cpu_us=cpu_us, p50_ms=p50_ms, p99_ms=p99_ms, **(filled | more))


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([7.0], 0.99, 7.0),
        ([1, 2, 3, 4], 0.5, 2),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 1.0, 100),
    ],
)
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(values, share, expected):
    assert percentile(values, share) == expected


def test_a_percentile_of_nothing_is_no_number():
    assert math.isnan(percentile([], 0.5))


def test_over_as_many_rounds_as_proxies_each_has_every_place_once():
    orders = [turn_order("abc", round) for round in range(3)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_ratios_are_taken_within_a_round_before_the_median():
    # The machine slowed down threefold: the ratio of the medians would be 0.2.
    samples = [
        sample(0, "ours", 10), sample(0, "yard", 20),
        sample(1, "ours", 12), sample(1, "yard", 60),
        sample(2, "ours", 30), sample(2, "yard", 60),
    ]  # fmt: skip
    ours, yard = summarise(samples, "yard")
    assert ours.cpu_ratio == (0.5, 0.2, 0.5)
    assert ours.cpu_us == (12, 10, 30)
    assert yard.cpu_ratio == (1, 1, 1)


def test_without_the_yardstick_there_are_no_ratios_and_no_verdicts():
    (ours,) = summarise([sample(0, "ours", 10)], "yard")
    assert ours.cpu_ratio is None
    assert verdicts(ours, BY_NAME["2k"]) == []


def test_failures_add_up_and_moved_sessions_do_not():
    samples = [
        sample(0, "ours", 1, failed=2, moved=3, disturbed=True),
        sample(1, "ours", 1, failed=1, moved=4),
    ]
    (ours,) = summarise(samples, "yard")
    assert (ours.failed, ours.moved, ours.disturbed_rounds, ours.rounds) == (3, 4, 1, 2)


def test_a_limit_that_is_met_exactly_is_kept():
    samples = [sample(0, "ours", 10, p99_ms=3.0), sample(0, "yard", 20, p99_ms=2.0)]
    found = verdicts(summarise(samples, "yard")[0], BY_NAME["2k"])
    assert [(one.what, one.measured, one.kept) for one in found] == [
        ("processor time", 0.5, True),
        ("p50", 1.0, True),
        ("p99", 1.5, False),
    ]


def test_a_limit_is_not_kept_by_failing_every_request():
    samples = [sample(0, "ours", 1, p50_ms=math.nan, p99_ms=math.nan), sample(0, "yard", 20)]
    found = verdicts(summarise(samples, "yard")[0], BY_NAME["2k"])
    assert [one.kept for one in found] == [True, False, False]


# --- the report -------------------------------------------------------------------------------------


@pytest.fixture
def run():
    samples = [
        sample(0, "homing", 25, failed=3, moved=2, others=0.3, disturbed=True),
        sample(0, "vllm-router", 40),
    ]
    return report.Run(
        date="2026-11-29T12:00+00:00",
        machine={"processor": "P", "cores": 2, "memory_gib": 4, "kernel": "6", "system": "S"},
        versions={"homing": "0.1", "vllm-router": "0.1.17", "Python": "3.11"},
        setups={"homing": "defaults", "vllm-router": "`consistent_hash`"},
        absent={"nginx": "apt-get install nginx"},
        ours="homing",
        yardstick="vllm-router",
        rounds=1,
        loads=[BY_NAME["2k"]],
        figures=summarise(samples, "vllm-router"),
        samples=samples,
    )


def test_the_table_says_what_is_missed_and_what_must_not_be_trusted(run):
    lines = report.table(run).splitlines()
    assert len({len(line) for line in lines}) == 1, "the columns are aligned"
    ours, yard = lines[2:]
    assert "| 25.0 (25.0–25.0) | 0.62 (0.62–0.62)" in ours
    assert "processor time 0.62 > 0.5: MISS; p50 1.00 ≤ 1: pass; p99 1.00 ≤ 1: pass" in ours
    assert "FAILED 3 requests; 2 of 97 sessions moved; machine disturbed in 1 of 1 rounds" in ours
    assert "MISS" not in yard
    assert "pass" not in yard


def test_the_page_names_machine_versions_and_who_was_not_measured(run):
    page = report.markdown(run)
    assert "P, 2 cores, 4 GiB, S, kernel 6. 1 round." in page
    assert "- vllm-router 0.1.17: `consistent_hash`" in page
    assert "- nginx: not measured (apt-get install nginx)" in page
    assert "took 8.0 to 8.0 ms of processor time, and other work at most 30% of all cores" in page
    assert "- the load: Python 3.11" in page


def test_the_document_holds_every_sample_and_verdict(run):
    read = orjson.loads(orjson.dumps(report.document(run)))
    assert [one["proxy"] for one in read["samples"]] == ["homing", "vllm-router"]
    assert read["figures"][0]["cpu_ratio"] == {"median": 0.625, "least": 0.625, "greatest": 0.625}
    assert [(one["what"], one["kept"]) for one in read["limits"]] == [
        ("processor time", False),
        ("p50", True),
        ("p99", True),
    ]


# --- the machine and its programs -------------------------------------------------------------------


def test_work_that_is_not_ours_counts_with_what_the_host_took():
    before = machine.parse_used("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 2", at=0.0)
    after = machine.parse_used("cpu  250 0 140 1200 10 0 5 5 0 0\n", at=2.0)
    ticks = os.sysconf("SC_CLK_TCK")
    assert after.busy_s - before.busy_s == pytest.approx(200 / ticks)
    assert after.stolen_s == pytest.approx(5 / ticks)
    assert machine.others_share(before, after, 1.0, cores=2) == pytest.approx((200 / ticks - 1.0) / 4.0)
    assert machine.others_share(before, after, 99.0, cores=2) == 0.0


def test_the_gauge_takes_processor_time():
    assert 0 < machine.gauge_ms() < 10_000


def test_the_proxy_has_the_first_core_alone_and_needs_a_second_beside():
    assert machine.share_out(frozenset({2, 5, 7})) == ({2}, {5, 7})
    with pytest.raises(BenchError, match="two cores"):
        machine.share_out(frozenset({0}))


def test_a_tree_is_the_root_with_its_childrens_children():
    assert processes.family(5, {5: 1, 6: 5, 7: 6, 8: 1, 9: 7, 1: 0}) == {5, 6, 7, 9}


def test_a_trees_time_counts_newcomers_whole_and_misses_no_one_silently():
    assert processes.spent_s({1: 2.0}, {1: 2.5, 9: 0.25}) == 0.75
    with pytest.raises(BenchError, match="9 ended"):
        processes.spent_s({1: 2.0, 9: 0.1}, {1: 2.5})


FORKS = """
import os, sys, time
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def test_a_program_runs_on_its_cores_and_leaves_nothing_behind(tmp_path):
    core = min(os.sched_getaffinity(0))
    started = processes.Program([sys.executable, "-c", FORKS], {core}, log=tmp_path / "log", stdout=-1)
    with started as program:
        child = int(program.first_line())
        watched = os.pidfd_open(child)
        assert os.sched_getaffinity(child) == {core}
        assert set(program.cpu_s()) == {program.pid, child}
        program.check()
    assert not running(program.pid)
    # A process that was killed ends when it is next given a core, which takes its time on a busy machine.
    try:
        assert select.select([watched], [], [], 120.0)[0], "the child still runs"
    finally:
        os.close(watched)
    assert not running(child)


def running(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped by init, which takes its own time."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([sys.executable, "-c", "import sys; sys.exit('no such flag')"], "status 1. no such flag"),
        (["/no/such/program"], "/no/such/program: No such file or directory"),
    ],
)
def test_a_program_that_ended_says_why(tmp_path, command, words):
    with processes.Program(command, {min(os.sched_getaffinity(0))}, log=tmp_path / "log") as program:
        program._process.wait()
        with pytest.raises(BenchError, match=words):
            program.check()


# --- the contenders ---------------------------------------------------------------------------------


@pytest.mark.parametrize("contender", contenders().values(), ids=lambda contender: contender.name)
def test_a_contender_listens_on_loopback_only_and_knows_every_replica(contender, tmp_path):
    told = " ".join(contender.arguments(Setting(Path("/x"), 8001, 8002, (9001, 9002), tmp_path)))
    told += "".join(path.read_text() for path in tmp_path.iterdir())
    assert "0.0.0.0" not in told
    assert "8001" in told
    assert all(told.count(f"127.0.0.1:{port}") == 1 for port in (9001, 9002))


def test_the_proxies_of_debian_hash_the_session():
    assert "hdr(X-Session-ID)" in haproxy_configuration(1, [2])
    assert "hash $http_x_session_id consistent" in nginx_configuration(1, [2], Path("/t"), as_root=False)


def test_nginx_keeps_its_user_only_where_that_is_root():
    assert "user root;" in nginx_configuration(1, [2], Path("/t"), as_root=True)
    assert "user root;" not in nginx_configuration(1, [2], Path("/t"), as_root=False)


def test_an_unpacked_program_is_found_with_its_libraries(tmp_path):
    assert debian.find("no-such-proxy", tmp_path) is None
    (tmp_path / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "usr/sbin").mkdir()
    (tmp_path / "usr/sbin/no-such-proxy").touch()
    found = debian.find("no-such-proxy", tmp_path)
    assert found is not None
    assert found.path == tmp_path / "usr/sbin/no-such-proxy"
    assert found.environment == {"LD_LIBRARY_PATH": str(tmp_path / "usr/lib/x86_64-linux-gnu")}


def test_what_is_unpacked_is_what_would_be_installed():
    plan = [
        "Inst liblua5.3-0 (5.3.6-2 Debian:12 [amd64])",
        "Inst haproxy (2.6 Debian)",
        "Conf haproxy (2.6 Debian)",
    ]
    assert debian.planned(plan) == ["liblua5.3-0", "haproxy"]


# --- the page ---------------------------------------------------------------------------------------


def test_the_page_has_the_loads_as_they_are():
    kinds = ("requests", "streams of 50 chunks, 20 ms apart")
    assert table("docs/benchmarks.md", "Load") == [
        [
            f"`{load.name}`",
            f"{load.body_bytes // 1000} KB",
            f"{load.connections}",
            f"{load.upstreams}",
            f"{load.requests:,} {kinds[load.streams]}",
            f"{load.limit:g}",
        ]
        for load in LOADS
    ]


# --- the command line -------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--only", "apache"], ["--load", "1g"]])
def test_what_cannot_be_measured_is_refused_as_usage(words, capsys):
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert f"argument {words[0]}" in capsys.readouterr().err


def test_with_no_proxy_there_it_says_how_to_get_one(tmp_path, capsys):
    assert main(["--only", "vllm-router", "--programs", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "goes on without vllm-router: make bench installs it" in said
    assert "none of the proxies is there" in said


# --- what commands have in common -------------------------------------------------------------------


def _stops() -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60.0)
    return 0


def _cannot() -> int:
    raise BenchError("no router here")


@pytest.mark.parametrize(
    ("work", "status", "said"),
    [
        (lambda: 3, 3, ""),
        (_cannot, 1, "race: no router here\n"),
        (_stops, 130, "race: stopped, for now\n"),
    ],
)
def test_a_command_ends_as_its_work_does_or_says_why(work, status, said, capsys) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert Command("race").run(work, stopped="stopped, for now") == status
    assert capsys.readouterr().err == said
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_is_for_linux_only(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert Command("soak").run(lambda: 0, stopped="") == 1
    assert capsys.readouterr().err == "soak: this is Linux only\n"
