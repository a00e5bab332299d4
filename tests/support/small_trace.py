"""Makes `tests/data/small-trace.jsonl`: a few agent sessions with all that a trace can have in it.

`python -m support.small_trace > data/small-trace.jsonl`, in `tests`, writes it anew.
"""

import json
from random import Random
from typing import Any

BLOCK = 64


def lines() -> list[str]:
    """One session a line: shared system prompts, growth, compactions, long pauses, a sub-agent."""
    rng = Random(20)
    return [json.dumps(_session(rng, number), separators=(",", ":")) for number in range(12)]


def _session(rng: Random, number: int) -> dict[str, Any]:
    tools, system = ((1200, 700), (2000, 500))[number % 2]
    ids = iter(range(1, 1 << 30))
    requests: list[dict[str, Any]] = _turns(rng, tools + system, 4 + number % 5, ids)
    if number % 3 == 0:
        agent = {"t": requests[1]["t"] + 1.5, "agent_id": "a", "tool_tokens": 640, "system_tokens": 64}
        requests.insert(2, {"agent": agent, "requests": _turns(rng, 704, 3, ids)})
    return {
        "id": f"small-{number}",
        "block_tokens": BLOCK,
        "tool_tokens": tools,
        "system_tokens": system,
        "requests": requests,
    }


def _turns(rng: Random, lead: int, count: int, ids: Any) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    prompt, blocks, at = lead + rng.randrange(300, 3000), 0, 0.0
    for turn in range(count):
        out = rng.randrange(20, 400)
        # In the middle of every longer session the history is compacted: little but the lead is left.
        compacted = turn == 5
        if compacted:
            prompt = lead + 900
        kept = min(blocks, lead // BLOCK) if compacted else blocks
        blocks = prompt // BLOCK
        added = blocks - kept
        first = next(ids)
        for _ in range(added - 1):
            next(ids)
        think = None if turn == 0 else rng.choice((2, 5, 11, 40, 700))
        turns.append(
            {
                "t": round(at, 1),
                "in": prompt,
                "out": out,
                "api": round(out / 60, 2),
                "think": think,
                "blocks": blocks,
                "lcp": kept,
                "new": [first, added] if added else [],
            }
        )
        at += out / 60 + (think or 0)
        prompt += out + rng.randrange(30, 2500)
    return turns


if __name__ == "__main__":
    print("\n".join(lines()))
