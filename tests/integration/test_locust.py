"""Locust with our agents against a whole router: a real headless run, ended when enough has come through."""

import asyncio
import csv
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.fleet import QUICK, fleet
from support.plane import until

ROOT = Path(__file__).parents[2]

# An answer takes so long that whoever leaves half-way leaves before its end.
SLOW = replace(QUICK, time_scale=8.0)

PROFILE = """\
version: 1
about: quick agents
exact_answers: true
kinds:
  agent:
    system: {tokens: 600, different: 2}
    opening: 100
    turns: 8
    adds: 60
    answer: 60
    gap: 5ms
    compaction: {above: 1400, to: 100}
    agents: {chance: 0.4, kind: helper}
    leaves: 0.2
  helper:
    weight: 0
    system: {tokens: 300}
    opening: 50
    turns: 2
    adds: 40
    answer: 10
    gap: 0
    reads: 64KiB
"""


@pytest.mark.timeout(180)
async def test_agents_play_sessions_and_every_turn_is_measured(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(PROFILE)
    async with fleet(2, settings=SLOW, keys={"sk-load": "team"}) as router:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "locust", "-f", str(ROOT / "loadtest/locustfile.py"), "--host", f"{router.base_url}/v1"),
            *("--headless", "--users", "3", "--spawn-rate", "3", "--csv", str(tmp_path / "run")),
            cwd=ROOT,
            env={"LOADTEST_PROFILE": str(tmp_path / "quick.yaml"), "LOADTEST_API_KEY": "sk-load", "PATH": ""},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        asked = [replica.requests for replica in router.replicas.values()]
        try:
            await until(lambda: sum(map(len, asked)) > 90 or process.returncode is not None, 100.0)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
        requests = [record for records in asked for record in records]
    lines = (tmp_path / "run_stats.csv").read_text().splitlines()
    rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(lines)}
    assert all(row["Failure Count"] == "0" for row in rows.values()), (rows, said)
    counts = {place: int(row["Request Count"]) for place, row in rows.items()}
    first, later = counts["TTFT", "agent turn 1"], counts["TTFT", "agent turns 2-5"]
    assert 0 < first < later
    assert counts["ITL", "agent turn 1"] == first
    assert counts["turn", "agent turns 6-20"] <= counts["TTFT", "agent turns 6-20"]
    assert counts["session", "agent"] > 0
    assert counts["session", "helper"] > 0
    assert counts["TTFT", "helper turn 1"] >= counts["session", "helper"]
    chats = [record for record in requests if record.path == "/v1/chat/completions"]
    # Whoever left in mid-answer is seen by the replica; who stayed got all that was asked for.
    assert any(record.aborted for record in chats)
    sizes = [len(record.json["messages"]) for record in chats]
    assert max(sizes) > 6
    assert sum((record.cached_tokens or 0) > 500 for record in chats) > len(chats) / 3
