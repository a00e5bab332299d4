"""Breaks as fields."""

from router.base.ids import SessionKey
from router.core.breaks import Break, Cause
from router.core.chain_watch import ChainWatch, Told
from router.core.outline import FIRST_ROLE, ROOT, Drawing, Outline, Part
from router.core.request import Chain
from router.telemetry.breaks import break_fields, breaks_overview, session_breaks
from tests.support.digests import digest

KEY = SessionKey("k")


def told(*segments: int) -> tuple[Told, Outline]:
    drawing = Drawing()
    for place, segment in enumerate(segments):
        drawing.add(FIRST_ROLE + 2 if place else ROOT, digest(segment), digest(segment))
    ends = tuple(400 * place for place in range(len(segments)))
    hashes = tuple(hash(segments[: place + 1]) & (1 << 64) - 1 for place in range(len(segments)))
    return Told(KEY, Chain(hashes, ends, 2), False, ends[-1] // 4, 0, 10.0), drawing.outline()


def test_a_session_without_a_break_has_none():
    assert session_breaks(ChainWatch(), KEY, 1.0) == {"breaks": {}, "last_break": None}


def test_a_sessions_breaks_are_counted_and_the_last_is_told_with_its_age():
    chains = ChainWatch()
    for segments in ((1, 2, 3, 4), (1, 2, 5, 4, 6)):
        turn, outline = told(*segments)
        chains.turn(turn, lambda first, outline=outline: None if first else outline)
    fields = session_breaks(chains, KEY, 12.5)
    assert fields["breaks"] == {"changed": 1}
    assert fields["last_break"] == {
        "part": "message",
        "cause": "changed",
        "message": 1,
        "role": "user",
        "lost_tokens": 200,
        "age_s": 2.5,
        "why": "message 1 (user) changed",
    }


def test_an_age_is_never_negative():
    broken = Break(Part.TOOLS, Cause.CHANGED, None, None, 1, False, 5.0)
    assert break_fields(broken, 4.0)["age_s"] == 0.0


def test_the_overview_tells_what_broke_how_often_and_where_last():
    chains = ChainWatch()
    for segments in ((1, 2, 3, 4), (1, 2, 5, 4, 6)):
        turn, outline = told(*segments)
        chains.turn(turn, lambda first, outline=outline: None if first else outline)
    told_of = breaks_overview(chains, 10, 12.5)
    assert told_of["turns"] == 1
    assert told_of["totals"] == [
        {"part": "message", "cause": "changed", "meant": False, "turns": 1, "lost_tokens": 200}
    ]
    assert [(each["session"], each["age_s"]) for each in told_of["latest"]] == [("k", 2.5)]
    assert breaks_overview(ChainWatch(), 10, 1.0) == {"turns": 0, "totals": [], "latest": []}
