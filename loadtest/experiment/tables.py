"""What the arms of an experiment came to, as text."""

from collections.abc import Mapping, Sequence
from statistics import median

from loadtest.experiment.clients import Outcome
from router.simulator.replay.report import table


def arms_table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """A row an arm: medians over its seeds. Prefill work is beside the first arm's at the same seed."""
    rows = [["arm", "TTFT p50", "p95", "hit rate", "prefill tokens", "prefill work"]]
    base = next(iter(outcomes.values()))
    for arm, seeds in outcomes.items():
        work = median(
            one.computed_tokens / off.computed_tokens - 1.0 for one, off in zip(seeds, base, strict=True)
        )
        rows.append(
            [
                arm,
                f"{median(one.ttft_s(0.5) for one in seeds) * 1000:.0f} ms",
                f"{median(one.ttft_s(0.95) for one in seeds) * 1000:.0f} ms",
                f"{median(one.hit_rate for one in seeds):.0%}",
                f"{median(one.computed_tokens for one in seeds):.0f}",
                f"{work:+.0%}",
            ]
        )
    return "\n".join(table(rows))


def turns_table(outcomes: Mapping[str, Outcome]) -> str:
    """A row an arm, of one session alone: how many tokens its prompts had, what was
    computed of them, and each turn's time to first token."""
    turns = max(len(outcome.answered) for outcome in outcomes.values())
    rows = [["arm", "prompt tokens", "prefill tokens", *(f"turn {turn + 1}" for turn in range(turns))]]
    for arm, outcome in outcomes.items():
        times = [f"{one.ttft_s * 1000:.0f} ms" for one in outcome.answered]
        rows.append([arm, f"{outcome.prompt_tokens}", f"{outcome.computed_tokens}", *times])
    return "\n".join(table(rows))
