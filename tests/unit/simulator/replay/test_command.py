"""`homing replay`: what it prints, writes and refuses."""

import json
from pathlib import Path

import pytest

from router.cli import main

SMALL = Path(__file__).parents[3] / "data" / "small-trace.jsonl"
FLEET = ("--replicas", "3", "--kv-tokens", "20000", "--rate", "0.5", "--seed", "3")


def replay(capsys, *arguments: str) -> str:
    assert main(["replay", str(SMALL), *FLEET, *arguments]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    return str(streams.out)


def test_policies_are_compared_beside_the_bound(capsys):
    lines = replay(capsys, "--policy", "ring", "--policy", "round-robin").splitlines()
    assert lines[0] == (
        "small-trace.jsonl: 0.5 sessions/s, seed 3; 3 replicas of 20,000 tokens KV and 0 on the host,"
        " 8000 tokens/s prefill"
    )
    assert [line.split()[0] for line in lines[3:]] == ["policy", "ring", "round-robin", "bound"]


def test_json_is_the_same_byte_for_byte_and_says_what_affinity_is_worth(capsys):
    asked = ("--policy", "home", "--policy", "two-choices", "--json", "--host-kv-tokens", "9000")
    out = replay(capsys, *asked)
    assert out == replay(capsys, *asked)
    answer = json.loads(out)
    home, scattered = answer["policies"]["home"], answer["policies"]["two-choices"]
    assert home["turns"] == scattered["turns"] == 81
    assert home["hit_rate"] > scattered["hit_rate"] + 0.1
    assert home["moves"] < scattered["moves"]
    assert (home["pulls"], home["refused"], home["left_out"]) == (0, 0, 0)
    assert answer["bound"]["ttft_ms"]["mean"] <= home["ttft_ms"]["mean"]


def test_the_default_policy_is_home(capsys):
    assert list(json.loads(replay(capsys, "--json"))["policies"]) == ["home"]


def test_turns_that_do_not_fit_are_counted_and_few_turns_are_few(capsys):
    small = json.loads(replay(capsys, "--json", "--kv-tokens", "5000"))["policies"]["home"]
    assert small["left_out"] > 0
    assert small["left_out"] + small["turns"] == 81
    cut = json.loads(replay(capsys, "--json", "--max-turns", "1", "--sessions", "5"))["policies"]["home"]
    assert cut["turns"] == 5, "one of each: their sub-agents begin after the second"


def test_without_host_bandwidth_there_is_no_host_tier(capsys):
    tight = ("--json", "--kv-tokens", "9000")
    none = replay(capsys, *tight)
    assert replay(capsys, *tight, "--host-kv-tokens", "50000", "--host-gbps", "0") == none
    assert replay(capsys, *tight, "--host-kv-tokens", "50000") != none


def test_seeds_are_compared_pair_by_pair(capsys):
    answer = json.loads(replay(capsys, "--seeds", "2", "--policy", "ring", "--policy", "home", "--json"))
    assert [each["seed"] for each in answer["seeds"]] == [3, 4]
    assert set(answer["paired"]) == {"home", "bound"}
    assert "medians over 2 seeds" in replay(capsys, "--seeds", "2")


def test_a_report_is_written_beside_what_is_printed(tmp_path, capsys):
    out = replay(capsys, "--report", str(tmp_path / "r.html"))
    html = (tmp_path / "r.html").read_text()
    assert html.count("<svg") == 2
    assert out.splitlines()[-1] in html


def test_a_trace_without_times_and_without_a_rate_begins_at_once_and_says_so(capsys):
    assert main(["replay", str(SMALL)]) == 0
    assert "all at once (the trace has no times; see --rate)" in capsys.readouterr().out


def test_a_trace_of_mooncakes_is_replayed_at_its_own_times(tmp_path, capsys):
    requests = [
        {"timestamp": at, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2 + at]}
        for at in (0, 5000)
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(request) + "\n" for request in requests))
    assert main(["replay", str(path), "--prefill-tps", "1000", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["policies"]["home"]
    assert result["turns"] == 2
    assert result["ttft_ms"]["max"] == 1100.0
    assert result["hit_rate"] in (0.0, 0.465455), "where both are on one replica they share 1,024 tokens"
    assert main(["replay", str(path)]) == 0
    assert "m.jsonl: at the trace's own times" in capsys.readouterr().out


def test_bandwidth_for_pulls_and_changes_of_the_fleet_are_taken_and_named(capsys):
    trace = str(SMALL)
    assert main(["replay", trace, "--pull-gbps", "25", "--event", "drain:r0@1s"]) == 0
    assert "pulls at 25 Gb/s; drain r0 at 1 s" in capsys.readouterr().out
    assert main(["replay", trace, "--pull-gbps", "25", "--gateway-kv-tokens", "5000"]) == 0
    assert "pulls at 25 Gb/s, a gateway of 5,000 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["replay", trace, "--event", "burn:r0@1s"])
    assert "kill:r0@10m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([str(SMALL), "--policy", "hom"], "did you mean 'home'"),
        ([str(SMALL), "--gateway-kv-tokens", "1"], "without --pull-gbps"),
        ([str(SMALL), "--policy", "ring", "--policy", "ring"], "two policies named 'ring'"),
        ([str(SMALL), "--kv-tokens", "63"], "--kv-tokens 63: less than a block, 64 tokens here"),
        ([str(SMALL), "--report", "/"], "/: Is a directory"),
        ([str(SMALL), "--event", "kill:r9@1m"], "--event kill:r9@60s: there is no replica r9 then"),
        ([str(SMALL), "--report", "/gone/r.html"], "/gone/r.html: No such file"),
        (["gone.jsonl"], "gone.jsonl: No such file"),
        (["BAD"], "bad.jsonl:2: turn 0: in: must be from 1"),
    ],
)
def test_input_that_is_refused_is_1_with_the_reason(arguments, says, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "requests": []}\n{"id": "b", "requests": [{"in": 0}]}\n')
    assert main(["replay", *(str(bad) if word == "BAD" else word for word in arguments)]) == 1
    streams = capsys.readouterr()
    assert says in streams.err
    assert streams.out == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: TRACE"),
        (["t", "--replicas", "0"], "0 is not at least 1"),
        (["t", "--sessions", "-1"], "'-1' is not a whole number"),
        (["t", "--seed", "9" * 5000], "is not a whole number"),
        (["t", "--rate", "-1"], "-1 is not a number from 0 up"),
        (["t", "--rate", "nan"], "nan is not a number from 0 up"),
        (["t", "--rate", "fast"], "'fast' is not a number"),
        (["t", "--prefill-tps", "0"], "0 is not above 0"),
        (["t", "--think-cap", "600"], "did you mean 600s?"),
    ],
)
def test_wrong_usage_is_2_and_says_what(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["replay", *arguments])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


PAIRS = ("--prefill-replicas", "2", "--pull-gbps", "100", "--rate", "0.5", "--seed", "3", "--json")


def test_prefill_and_decode_replicas_pull_over_turns_and_one_way_they_do_not(capsys):
    both, one_way = (
        json.loads(replay(capsys, *PAIRS, more, "--event", "drain:p0@20s"))
        for more in ("--streams-offer", "--one-way")
    )
    assert both["policies"]["home"]["pulls"] > 5
    assert one_way["policies"]["home"]["pulls"] == 0
    assert both["policies"]["home"]["hit_rate"] > one_way["policies"]["home"]["hit_rate"]
    assert both["policies"]["home"]["turns"] == 81


def test_the_heading_says_who_prefills(capsys):
    of = "2 replicas that prefill, 3 that decode"
    asked = PAIRS[:4]
    assert f"{of} (decode keeps and offers whole answers and not streams), each of 20" in replay(
        capsys, *asked
    )
    assert f"{of} (one way), each of 20,000" in replay(capsys, *asked, "--one-way")
    more = replay(capsys, *asked, "--streams-offer", "--decode-pin", "90s")
    assert f"{of} (decode keeps and offers whole answers and streams for 90 s), each" in more


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--prefill-replicas", "2"), "--pull-gbps"),
        (("--prefill-replicas", "2", "--pull-gbps", "1", "--gateway-kv-tokens", "9"), "--gateway-kv-tokens"),
        (("--one-way",), "--prefill-replicas"),
        (("--streams-offer",), "--prefill-replicas"),
        (("--decode-pin", "90s"), "--prefill-replicas"),
        ((*PAIRS[:4], "--one-way", "--streams-offer"), "--streams-offer"),
        ((*PAIRS[:4], "--event", "add:pod7@1s"), "p9 prefills"),
        (("--prefill-replicas", "1", "--pull-gbps", "1", "--event", "kill:p1@1s"), "no replica p1"),
    ],
)
def test_options_of_pairs_that_go_with_nothing_are_refused(capsys, given, told):
    assert main(["replay", str(SMALL), *FLEET, *given]) == 1
    assert told in capsys.readouterr().err
