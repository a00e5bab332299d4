"""The installed `homing`, as a shell sees it: what it prints, what it answers, how it ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

HOMING = Path(sys.executable).parent / "homing"
ROOT = Path(__file__).parents[2]
READY_S = 120.0


def run(
    *arguments: str, cwd: Path | None = None, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [HOMING, *arguments], capture_output=True, text=True, timeout=120, cwd=cwd, input=text, check=False
    )


class Process:
    """A command that keeps running, and the lines that it has printed."""

    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [HOMING, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def line(self, pattern: str) -> re.Match[str]:
        """The next line on standard output that the pattern is found in."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if found := re.search(pattern, line):
                return found
        self.popen.wait()
        assert self.popen.stderr is not None
        raise AssertionError(f"it ended without a line like {pattern!r}: {self.popen.stderr.read()}")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal and wait: exit status and standard error."""
        self.popen.send_signal(number)
        _, stderr = self.popen.communicate(timeout=120)
        return self.popen.returncode, stderr


@contextmanager
def running(*arguments: str) -> Iterator[Process]:
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.popen.kill()
        process.popen.communicate()


@contextmanager
def engine(*arguments: str) -> Iterator[str]:
    """A simulated replica's URL."""
    with running("engine", "--port", "0", *arguments) as process:
        yield process.line(r"http://\S+")[0]


@contextmanager
def router(*arguments: str) -> Iterator[tuple[Process, str, str]]:
    """A router on free ports: the process, the data port's URL, the admin port's."""
    with running("serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments) as process:
        data = process.line(r"^homing \S+ \(\w+\): (http://\S+) -> .*; admin (http://\S+)")
        yield process, data[1], data[2]


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def chat(**more: object) -> dict[str, object]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], **more}


# --- usage ------------------------------------------------------------------------------------------


def test_help_names_every_command() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in ("serve", "demo", "engine", "check", "explain", "schema"):
        assert re.search(rf"^ +{command} ", shown.stdout, re.MULTILINE), command


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["server"], "server"),
        (["serve", "--replicas", "http://127.0.0.1:1"], "--replicas"),
        (["engine"], "--port"),
        (["engine", "--port", "70000"], "70000"),
        (["explain", "body.json"], "--admin"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(arguments: list[str], wrong: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert wrong in ended.stderr
    assert "--help" in ended.stderr


# --- check ------------------------------------------------------------------------------------------

BAD = """\
version: 1
listen: 127.0.0.1:8080
polices: [home]
replicas:
  - {name: a, url: http://127.0.0.1:1}
  - {name: a, url: ftp://127.0.0.1:2}
limits: {idle: 75}
"""


def faults(text: str, name: str) -> set[int]:
    """The lines of the file that faults were found in."""
    return {int(line) for line in re.findall(rf"{re.escape(name)}:(\d+): ", text)}


def test_check_tells_every_fault_with_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    ended = run("check", "bad.yaml", cwd=tmp_path)
    assert ended.returncode == 1
    assert faults(ended.stdout, "bad.yaml") == {3, 6, 7}
    assert "policies" in ended.stdout
    assert "75s" in ended.stdout


def test_check_accepts_all_that_is_shipped() -> None:
    files = sorted([*ROOT.glob("policies/*.yaml"), ROOT / "config" / "router.yaml"])
    ended = run("check", *map(str, files), cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith(f"{len(files)} files: no faults\n")


def test_check_of_a_file_that_is_not_there_is_1(tmp_path: Path) -> None:
    ended = run("check", "none.yaml", cwd=tmp_path)
    assert ended.returncode == 1
    assert "none.yaml" in ended.stdout


def test_schema_is_json() -> None:
    ended = run("schema")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)


# --- serve ------------------------------------------------------------------------------------------


def test_serve_refuses_a_bad_config_with_every_fault_before_it_listens(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    ended = run("serve", "-c", "bad.yaml", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert faults(ended.stderr, "bad.yaml") == {3, 6, 7}
    assert "Traceback" not in ended.stderr


def test_serve_refuses_bad_flags_with_every_fault() -> None:
    ended = run("serve", "--replica", "127.0.0.1:1", "--policy", "hone", "--listen", "nowhere")
    assert ended.returncode == 1
    assert {"--replica", "--policy", "--listen"} <= set(re.findall(r"^--\w+", ended.stderr, re.MULTILINE))
    assert "home" in ended.stderr


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_busy_port_is_1_and_the_message_names_it(flag: str) -> None:
    with busy_port() as port:
        free = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0"} | {flag: f"127.0.0.1:{port}"}
        ended = run("serve", *[word for pair in free.items() for word in pair])
    assert (ended.returncode, ended.stdout) == (1, "")
    [message] = [line for line in ended.stderr.splitlines() if line.startswith("homing: ")]
    assert f"127.0.0.1:{port}" in message
    assert "in use" in message
    assert flag in message
    assert "Traceback" not in ended.stderr


def test_serve_starts_without_its_replicas_and_says_which_are_missing() -> None:
    with busy_port() as port:
        pass  # nobody listens there now
    with router("--replica", f"http://127.0.0.1:{port}") as (process, data, admin):
        line = process.line(r"^  r0 (\S+): (.*)")
        assert line[1] == f"http://127.0.0.1:{port}"
        assert "Connection refused" in line[2]
        refused = httpx.post(f"{data}/v1/chat/completions", json=chat(), timeout=60)
        assert refused.status_code == 503
        assert "r0 is starting" in refused.json()["error"]["message"]
        assert httpx.get(f"{admin}/livez", timeout=60).status_code == 200
        assert httpx.get(f"{admin}/readyz", timeout=60).status_code == 503
        status, stderr = process.stop()
        assert status == 0
        assert "no API keys are configured" in stderr


def test_a_running_stream_ends_properly_after_sigterm_and_the_exit_is_0() -> None:
    with engine() as replica, router("--replica", replica) as (process, data, _):
        with httpx.Client(base_url=data, timeout=60) as client:
            body = chat(stream=True, max_tokens=200, ignore_eos=True)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                first = next(lines)
                assert first.startswith("data: {")
                sent = time.monotonic()
                process.popen.send_signal(signal.SIGTERM)
                rest = [line for line in lines if line]
                assert time.monotonic() - sent > 0.5  # it was in the midst of it
        assert rest[-1] == "data: [DONE]"
        assert len(rest) > 150
        status, stderr = process.stop()
        assert status == 0
        assert "stopping" in stderr
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{data}/health", timeout=60)


def test_a_second_signal_ends_the_wait_and_the_stream_is_told() -> None:
    with engine() as replica, router("--replica", replica) as (process, data, _):
        with httpx.Client(base_url=data, timeout=60) as client:
            body = chat(stream=True, max_tokens=2000, ignore_eos=True)
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                process.popen.send_signal(signal.SIGINT)
                assert process.popen.stderr is not None
                assert any("stopping" in line for line in process.popen.stderr)
                process.popen.send_signal(signal.SIGINT)
                rest = [line for line in lines if line]
        assert "the router is stopping" in rest[-1]
        assert process.popen.wait(timeout=120) == 0


def test_sigterm_ends_a_router_that_still_waits_for_the_one_before_it(tmp_path: Path) -> None:
    (tmp_path / "router.yaml").write_text(
        "version: 1\nlisten: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\nrestart: {handover: socket}\n"
    )
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "socket"))
        silent.listen(1)
        silent.settimeout(READY_S)
        with running("serve", "-c", str(tmp_path / "router.yaml")) as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(1)
                assert process.stop()[0] == 0


def test_a_second_process_takes_over_the_port_and_the_first_ends(tmp_path: Path) -> None:
    with engine() as replica:
        (tmp_path / "router.yaml").write_text(
            "version: 1\nlisten: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}\n"
            f"restart: {{handover: socket}}\nreplicas: [{{name: a, url: {replica}}}]\n"
        )
        with router("-c", str(tmp_path / "router.yaml")) as (first, data, admin):
            with router("-c", str(tmp_path / "router.yaml")) as (_, same_data, same_admin):
                assert (same_data, same_admin) == (data, admin)
                assert first.popen.wait(READY_S) == 0
                assert httpx.post(f"{data}/v1/chat/completions", json=chat()).status_code == 200


def test_a_config_file_with_keys_and_policies_runs(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("version: 1\nkeys: [{tenant: acme, key: key-of-acme}]\n")
    (tmp_path / "secret").write_text("a-secret-of-this-test-0123456789abcdef\n")
    with engine("--model", "m", "--time-scale", "20") as replica:
        (tmp_path / "router.yaml").write_text(
            "version: 1\n"
            "policies: [home, least-loaded]\n"
            "routes: [{match: {model: m, tenant: acme}, policy: least-loaded}]\n"
            f"replicas: [{{name: one, url: {replica}}}]\n"
            "access: {keys_file: keys.yaml, secret_file: secret}\n"
        )
        with router("-c", str(tmp_path / "router.yaml")) as (process, data, admin):
            asked = chat(model="m")
            assert httpx.post(f"{data}/v1/chat/completions", json=asked, timeout=60).status_code == 401
            headers = {"Authorization": "Bearer key-of-acme"}
            answer = httpx.post(f"{data}/v1/chat/completions", json=asked, headers=headers, timeout=60)
            assert (answer.status_code, answer.headers["x-homing-replica"]) == (200, "one")
            [decision] = httpx.get(f"{admin}/api/decisions", timeout=60).json()["decisions"]
            assert decision["policy"] == "least-loaded"
            assert process.stop(signal.SIGINT)[0] == 0


# --- engine -----------------------------------------------------------------------------------------


def test_an_engines_busy_port_is_1_and_the_message_names_it() -> None:
    with busy_port() as port:
        ended = run("engine", "--port", str(port))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "in use" in ended.stderr


def test_an_engine_refuses_figures_that_make_no_sense_all_at_once() -> None:
    ended = run("engine", "--port", "0", "--kv-blocks", "0", "--time-scale", "-1")
    assert ended.returncode == 1
    assert "kv_blocks" in ended.stderr
    assert "time_scale" in ended.stderr


def test_an_engine_stops_on_a_signal_with_0() -> None:
    with running("engine", "--port", "0", "--name", "one") as process:
        url = process.line(r"one \(sim-model\): (http://\S+)")[1]
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        assert process.stop() == (0, "")


# --- explain ----------------------------------------------------------------------------------------


def test_explain_tells_what_a_running_router_and_a_fresh_one_would_do(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat()))
    with engine("--time-scale", "20") as replica, router("--replica", replica) as (_, data, admin):
        headers = {"X-Session-ID": "one"}
        assert (
            httpx.post(f"{data}/v1/chat/completions", json=chat(), headers=headers, timeout=60).status_code
            == 200
        )
        asked = run("explain", "--admin", admin, "--session", "one", str(body))
        assert (asked.returncode, asked.stderr) == (0, "")
        assert asked.stdout.startswith("r0  home: home  (policy home)\n")
        assert re.search(r"^→  +r0 ", asked.stdout, re.MULTILINE)
        shown = run("explain", "--admin", admin, "--session", "one", "--json", "-", text=body.read_text())
        assert json.loads(shown.stdout)["kind"] == "home"

        config = tmp_path / "router.yaml"
        config.write_text(f"version: 1\nreplicas: [{{name: one, url: {replica}}}]\n")
        fresh = run("explain", "-c", str(config), "--session", "one", str(body))
        assert (fresh.returncode, fresh.stderr) == (0, "")
        assert fresh.stdout.startswith("one  new: owner on the ring  (policy home)\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("{", "not JSON"), ('{"messages": 1}', "not as expected")],
)
def test_explain_of_what_is_no_request_is_1(tmp_path: Path, content: str | None, message: str) -> None:
    body = tmp_path / "body.json"
    if content is not None:
        body.write_text(content)
    config = tmp_path / "router.yaml"
    config.write_text("version: 1\nreplicas: [{name: one, url: http://127.0.0.1:9}]\n")
    ended = run("explain", "-c", str(config), str(body))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_explain_without_a_router_to_ask_is_1(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text(json.dumps(chat()))
    with busy_port() as port:
        pass
    ended = run("explain", "--admin", f"http://127.0.0.1:{port}", str(body))
    assert ended.returncode == 1
    assert f"no answer from the admin port at http://127.0.0.1:{port}" in ended.stderr


# --- demo -------------------------------------------------------------------------------------------

ROW = re.compile(
    r"^(agent-\d+)? +(\d+)  (r\d) +(new|home|failover|spill|pull) +(\d+) +(\d+) +(\d+)$", re.MULTILINE
)


def test_the_demo_shows_turns_that_go_home_and_ends_with_0() -> None:
    ended = run("demo")
    assert ended.returncode == 0, ended.stderr
    rows = ROW.findall(ended.stdout)
    assert len(rows) == 30
    kinds = {int(turn): [row[3] for row in rows if row[1] == turn] for turn in ("1", "2", "3")}
    assert set(kinds[1]) == {"new"}
    # A busy machine makes a home look slow, and leaving it is then right.
    assert set(kinds[2]) <= {"home", "spill", "pull"}
    assert kinds[2].count("home") >= 4
    pulled = [row for row in rows if row[3] == "pull"]
    assert max(int(row[6]) / int(row[5]) for row in pulled) > 0.9, "a pull brings what would be computed"
    assert "pull" in kinds[3]
    for row in rows:
        if row[3] == "home":
            assert int(row[6]) > int(row[5]) * 0.9, row
    assert "none was lost" in ended.stdout


def test_the_demo_can_be_kept_and_stops_on_ctrl_c() -> None:
    with running("demo", "--keep") as process:
        found = process.line(r"base URL (http://\S+), model (\S+); (r\d) is back")
        answer = httpx.post(f"{found[1]}/chat/completions", json=chat(model=found[2]), timeout=60)
        assert answer.status_code == 200
        admin = process.line(r"^dashboard (http://[^; ]+)/; its token")[1]
        assert httpx.get(f"{admin}/readyz", timeout=60).status_code == 200
        status, stderr = process.stop(signal.SIGINT)
        assert status == 0
        assert "Traceback" not in stderr


# --- streams and signals ----------------------------------------------------------------------------


def listening(process: int) -> list[int]:
    """The ports at which a process listens (Linux)."""
    held: set[str] = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            held.add(str(descriptor.readlink()))
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [
        int(one[1].rpartition(":")[2], 16)
        for one in sockets
        if one[3] == "0A" and f"socket:[{one[9]}]" in held
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("streams", ["2>/dev/full", "2>&-", ">/dev/full 2>&1", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_router_serves_though_nobody_can_read_what_it_says(streams: str) -> None:
    command = f"exec {HOMING} serve --replica http://127.0.0.1:9 --listen 127.0.0.1:0 --admin 127.0.0.1:0"
    process = subprocess.Popen(["sh", "-c", f"{command} {streams}"], stdout=subprocess.DEVNULL)
    try:
        patience = time.monotonic() + READY_S
        # A port that was free before may be another test's by now, and it cannot say which one it has.
        while len(ports := listening(process.pid)) < 2:
            assert process.poll() is None, "it ended before it served"
            assert time.monotonic() < patience
            time.sleep(0.05)
        urls = [f"http://127.0.0.1:{port}/health" for port in ports]
        answers = [httpx.get(url, trust_env=False, timeout=60).status_code for url in urls]
        assert sorted(answers) == [200, 404], "of the data port and the admin port"
    finally:
        process.terminate()
        process.wait(timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
def test_sighup_reads_the_files_anew_and_a_bad_one_stops_nothing(tmp_path: Path) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text("version: 1\npolicy: mine\nstrategy: ring\n")
    with router("--replica", "http://127.0.0.1:9", "--policy", str(policy)) as (process, data, admin):
        assert process.popen.stderr is not None
        for text, said in (
            (
                "version: 1\npolicy: mine\nstrategy: least-loaded\n",
                "policy mine.strategy: ring → least-loaded",
            ),
            ("version: 1\npolicy: mine\nstrategy: leats-loaded\n", "did you mean 'least-loaded'?"),
        ):
            policy.write_text(text)
            process.popen.send_signal(signal.SIGHUP)
            assert any(said in line for line in process.popen.stderr)
        assert httpx.get(f"{data}/health", trust_env=False, timeout=60).status_code == 200
        assert "strategy: least-loaded" in httpx.get(f"{admin}/api/policy", trust_env=False, timeout=60).text


def test_a_router_without_replicas_says_so_at_start() -> None:
    with router() as (process, _, _):
        _, stderr = process.stop()
        assert "note: no replicas: every request is refused" in stderr
