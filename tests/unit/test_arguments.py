"""What the command line takes, what it refuses, and what its help tells."""

import re

import pytest

from router.arguments import parser
from router.base.build import version_line


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of words that are no command line."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_version_is_the_builds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{version_line()}\n"


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        ("serve --workers 4", "workers", 4),
        ("engine --port 0", "port", 0),
        ("replay t --think-cap 2m", "think_cap", 120.0),
        ("replay t --rate 0", "rate", 0.0),
        ("kv-agent -c a.yaml", "log_level", "info"),
    ],
)
def test_values_are_read(words: str, flag: str, value: object) -> None:
    read = parser().parse_args(words.split())
    assert (read.command, getattr(read, flag)) == (words.split()[0], value)


def test_an_event_is_read() -> None:
    (event,) = parser().parse_args(["replay", "t", "--event", "kill:r0@10m"]).event
    assert (event.what, event.at_s) == ("kill", 600.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("engine --port 65536", "'65536' is not a port, 0 to 65535"),
        ("engine --port x", "'x' is not a port, 0 to 65535"),
        ("serve --workers 0", "0 is not at least 1"),
        ("serve --workers 257", "257 are more than the 256 that can be meant"),
        ("replay t --seed -1", "'-1' is not a whole number"),
        ("replay t --seed " + "1" * 19, "is not a whole number"),
        ("replay t --prefill-tps 0", "0 is not above 0"),
        ("replay t --rate x", "'x' is not a number"),
        ("replay t --rate inf", "inf is not a number from 0 up"),
        ("replay t --think-cap x", "--think-cap: "),
        ("replay t --event x", "--event: "),
        ("", "see homing --help"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(words, capsys)


@pytest.mark.parametrize(
    "command", ["serve", "demo", "engine", "kv-agent", "kv-gateway", "check", "explain", "replay", "schema"]
)
def test_the_help_of_a_command_says_what_it_does_and_of_each_flag_what_it_is_for(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    (listed,) = re.findall(rf"^ +{command}\s+(.+)$", capsys.readouterr().out, re.MULTILINE)
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f" {listed[0].upper()}{listed[1:]}. " in told
    assert "(default None)" not in told
    assert "(default False)" not in told
    # A flag without words is followed by the next one.
    assert re.findall(r" (--\S+ \S+)(?= -\S)", told.split(" options: ", 1)[1] + " --") == []


def test_the_help_of_a_replay_tells_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["replay", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for flag, default in (
        ("--policy", "home"),
        ("--replicas", "4"),
        ("--kv-tokens", "600000"),
        ("--host-kv-tokens", "0"),
        ("--kv-bytes-per-token", "163840"),
        ("--prefill-tps", "8000"),
        ("--prefill-double-tokens", "0"),
        ("--max-num-seqs", "256"),
        ("--batch-tokens", "8192"),
        ("--host-gbps", "400"),
        ("--sessions", "all"),
        ("--think-cap", "600s"),
        ("--seeds", "1"),
    ):
        text = told.rsplit(f" {flag} ", 1)[1].split(" --", 1)[0]
        assert f"default {default}" in text, flag
