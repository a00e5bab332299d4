"""The command line: what each command prints, and its exit status."""

import argparse
import json
import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from router import __version__
from router.arguments import parser
from router.base.build import kind_of_build
from router.cli import COMMANDS, main

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text("version: 1\npolicy: mine\nstrategy: ring\n")
    (tmp_path / "bad.yaml").write_text("version: 1\npolicy: mine\nstrategy: rign\nreplica: []\n")
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    return tmp_path


@pytest.fixture
def taken():
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def start(*arguments: str) -> subprocess.Popen[str]:
    """The command as a process of its own: it sets up logging and signals."""
    return subprocess.Popen(
        [sys.executable, "-m", "router.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def usage_error(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_version_is_the_packages(capsys):
    assert usage_error("--version") == 0
    assert capsys.readouterr().out == f"homing {__version__} ({kind_of_build()})\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["no-such"], ["check"], ["engine"], ["engine", "--port", "70000"], ["explain", "b.json"]],
)
def test_wrong_usage_is_2_and_names_the_help(arguments, capsys):
    assert usage_error(*arguments) == 2
    assert re.search(r"see homing.* --help", capsys.readouterr().err)


def test_check_is_0_where_there_is_no_fault(folder, capsys):
    assert main(["check", "good.yaml"]) == 0
    assert capsys.readouterr().out == "1 file: no faults\n"


def test_check_is_1_and_tells_all_faults_with_their_lines(folder, capsys):
    assert main(["check", "good.yaml", "bad.yaml", "gone.yaml"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^bad.yaml:3: .*did you mean 'ring'", out, re.MULTILINE)
    assert re.search(r"^bad.yaml:4: unknown key 'replica'", out, re.MULTILINE)
    assert re.search(r"^gone.yaml: cannot be read", out, re.MULTILINE)


def test_schema_is_json(capsys):
    assert main(["schema"]) == 0
    assert set(json.loads(capsys.readouterr().out)["$defs"]) >= {"RouterConfig", "Policy", "KeysFile"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "-c", "gone.yaml"], "gone.yaml: cannot be read"),
        (["serve", "--policy", "hom"], "did you mean 'home'"),
        (["serve", "--replica", "10.0.0.1:8000"], "write http://10.0.0.1:8000"),
        (["explain", "-c", "good.yaml", "gone.json"], "gone.json: No such file"),
        (["engine", "--port", "0", "--block-size", "0"], "block_size: must be at least 1"),
    ],
)
def test_input_that_is_refused_is_1_with_the_reason(arguments, says, folder, capsys):
    assert main(arguments) == 1
    streams = capsys.readouterr()
    assert says in streams.err
    assert streams.out == ""


@pytest.mark.parametrize("flag", [["--kv-p2p"], ["--pull-failures", "0.5"]])
def test_what_a_simulated_kv_agent_does_is_not_asked_of_none(flag, capsys):
    assert main(["engine", "--port", "0", *flag]) == 1
    assert (
        capsys.readouterr().err
        == f"homing: {flag[0]}: there is no KV agent that it could be of; give --kv-agent\n"
    )


def test_explain_says_why_a_fresh_router_would_refuse(folder, taken, capsys):
    config = "version: 1\nreplicas: [{name: a, url: 'http://127.0.0.1:9'}]\nprobe: {timeout: 200ms}\n"
    (folder / "router.yaml").write_text(config)
    assert main(["explain", "-c", "router.yaml", "body.json"]) == 1
    assert re.match(r"homing: no replica can take this turn: a is starting", capsys.readouterr().err)


def test_explain_says_that_an_admin_port_is_not_there(folder, capsys):
    assert main(["explain", "--admin", "127.0.0.1:9", "body.json"]) == 1
    assert "no answer from the admin port at 127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
def test_a_busy_port_is_1_and_says_which_flag_to_change(flag, taken):
    addresses = {"--listen": "127.0.0.1:0", "--admin": "127.0.0.1:0", flag: f"127.0.0.1:{taken}"}
    process = start("serve", *[word for pair in addresses.items() for word in pair])
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert str(taken) in err
    assert "in use" in err
    assert flag in err
    assert "Traceback" not in err


def test_serve_starts_with_its_replica_down_answers_503_and_stops_at_sigterm():
    process = start(
        "serve", "--replica", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"
    )
    assert process.stdout is not None
    try:
        announced = process.stdout.readline()
        match = re.fullmatch(
            rf"homing {__version__} \({kind_of_build()}\): (http://\S+) -> 1 replica \(0 healthy\),"
            r" policy home; admin (http://\S+)\n",
            announced,
        )
        assert match is not None, announced
        assert "r0 http://127.0.0.1:9: starting" in process.stdout.readline()
        assert process.stdout.readline().startswith("admin token for writes, made up for this run: ")
        with httpx.Client(trust_env=False, timeout=60) as client:
            refused = client.post(f"{match[1]}/v1/chat/completions", json=BODY)
            assert refused.status_code == 503
            assert "r0 is starting" in refused.json()["error"]["message"]
            assert client.get(f"{match[2]}/livez").status_code == 200
            assert client.get(f"{match[2]}/readyz").status_code == 503
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "no API keys are configured" in err
    assert "homing: stopping" in err
    assert "Traceback" not in err


def test_a_reader_that_has_seen_enough_is_no_error():
    process = start("schema")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), err) == (0, "")


@pytest.mark.parametrize(("command", "key"), [("kv-agent", "kv_agent"), ("kv-gateway", "kv_gateway")])
def test_kv_servers_say_where_they_are_and_stop_when_told(command, key, tmp_path):
    socket_ = f"socket: {tmp_path}/kv.sock\n" if command == "kv-agent" else ""
    (tmp_path / "kv.yaml").write_text(
        f"version: 1\n{key}: a\n{socket_}listen: 127.0.0.1:0\nmetrics: 127.0.0.1:0\nsecret_file: secret\n"
    )
    (tmp_path / "secret").write_text("a fleet's secret\n")
    process = start(command, "-c", str(tmp_path / "kv.yaml"))
    said = re.fullmatch(r"KV \w+ a: 127\.0\.0\.1:\d+; metrics on port (\d+)\n", process.stdout.readline())
    assert httpx.get(f"http://127.0.0.1:{said[1]}/livez", timeout=60).text == "alive\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert not (tmp_path / "kv.sock").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("listen: 127.0.0.1:{taken}", "127.0.0.1:{taken}: Address already in use"),
        ("metrics: 127.0.0.1:{taken}", "127.0.0.1:{taken}: Address already in use"),
        ("disk: {{folder: {folder}/kv.yaml/kv, size: 1MiB}}", "{folder}/kv.yaml/kv: Not a directory"),
        ("socket: {folder}/gone/kv.sock", "{folder}/gone/kv.sock: No such file or directory"),
    ],
)
def test_a_kv_server_that_cannot_have_what_it_needs_says_which(line, says, tmp_path, taken):
    command, key = ("kv-agent", "kv_agent") if line.startswith("socket") else ("kv-gateway", "kv_gateway")
    listen = "" if line.startswith("listen") else "listen: 127.0.0.1:0\n"
    written = line.format(taken=taken, folder=tmp_path)
    (tmp_path / "kv.yaml").write_text(f"version: 1\n{key}: a\n{listen}{written}\nsecret_file: secret\n")
    (tmp_path / "secret").write_text("x\n")
    process = start(command, "-c", str(tmp_path / "kv.yaml"))
    _, errors = process.communicate(timeout=120)
    name = command.removeprefix("kv-")
    assert errors == f"homing: KV {name} a: {says.format(taken=taken, folder=tmp_path)}\n"
    assert process.returncode == 1


def test_each_command_that_there_is_a_word_for_is_there():
    (words,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert list(words.choices) == list(COMMANDS)
