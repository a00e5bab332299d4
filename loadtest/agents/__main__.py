"""`python -m loadtest.agents PROFILE`: the shape of the sessions that a profile makes; nothing is sent."""

import argparse
import sys
from collections.abc import Iterator, Sequence

from loadtest.agents.profile import Profile, load_profile, shipped
from loadtest.agents.sessions import Planner, SessionPlan
from router.base.errors import SettingsError

_SHARES = (0.1, 0.5, 0.9, 1.0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.agents", description=__doc__)
    parser.add_argument("profile", help=f"a file, or one of {', '.join(shipped())}")
    parser.add_argument("--sessions", type=int, default=300, metavar="N", help="how many to make (300)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    try:
        profile = load_profile(arguments.profile)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    planner = Planner(profile, arguments.seed)
    plans = [planner.session(number) for number in range(max(1, arguments.sessions))]
    print(profile.about)
    print(f"{'p10':>44} {'p50':>9} {'p90':>9} {'most':>9}")
    for what, values in shape(profile, plans):
        print(f"{what:<34} " + " ".join(f"{_quantile(sorted(values), share):9.0f}" for share in _SHARES))
    return 0


def shape(profile: Profile, plans: Sequence[SessionPlan]) -> Iterator[tuple[str, Sequence[float]]]:
    """Figures of each kind: what they are, and the values."""
    for kind in profile.kinds:
        own = [one for plan in plans for one in (plan, *_agents(plan)) if one.kind == kind]
        if not own:
            continue
        yield f"{kind}: turns a session", [len(plan.turns) for plan in own]
        yield f"{kind}: prompt tokens a turn", [size for plan in own for size in prompts(profile, plan)]
        yield (
            f"{kind}: tokens that a turn adds",
            [turn.adds.tokens for plan in own for turn in plan.turns[1:]] or [0],
        )
        yield f"{kind}: tokens of an answer", [turn.answer_tokens for plan in own for turn in plan.turns]
        yield f"{kind}: seconds before a turn", [turn.gap_s for plan in own for turn in plan.turns[1:]] or [0]
        yield f"{kind}: sub-agents a session", [len(list(_agents(plan))) for plan in own]


def prompts(profile: Profile, plan: SessionPlan) -> Iterator[int]:
    """Prompt tokens of each turn, where each answer is as long as it may be."""
    compaction = profile.kinds[plan.kind].compaction
    tokens = plan.system.tokens
    for turn in plan.turns:
        if compaction is not None and tokens + turn.adds.tokens > compaction.above:
            tokens = plan.system.tokens + compaction.to
        tokens += turn.adds.tokens
        yield tokens
        tokens += turn.answer_tokens


def _agents(plan: SessionPlan) -> Iterator[SessionPlan]:
    return (turn.agent for turn in plan.turns if turn.agent is not None)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, round(share * len(ordered)) - 1)]


if __name__ == "__main__":
    sys.exit(main())
