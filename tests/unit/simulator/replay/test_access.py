"""Access logs as traces: what is written by `AccessLog` comes out again."""

import json
from random import Random

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.hashing import hash64
from router.core.observe import Ended, Outcome, Usage
from router.core.request import Chain, Turn
from router.simulator.replay.access import BLOCK_TOKENS, AccessReader
from router.telemetry.access_log import AccessLog


class Log:
    """Writes as a router would."""

    def __init__(self) -> None:
        self.begun = 1
        self.lines: list[bytes] = []
        self.now = 1000.0
        self._log = AccessLog(self, secret=b"s", wall=lambda: self.now)

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    def turn(
        self,
        session: str | None,
        words: str,
        *,
        at: float,
        prompt: int | None = None,
        reply: int | None = 10,
        seconds: float = 1.0,
        outcome: Outcome = Outcome.COMPLETED,
        cached: int | None = None,
        **more: object,
    ) -> None:
        """Each word is a segment of 400 bytes, and 100 tokens unless `prompt` says otherwise."""
        hashes: list[int] = []
        for word in words.split():
            hashes.append(hash64(word.encode(), hashes[-1] if hashes else 7))
        chain = Chain(tuple(hashes), tuple(400 * (place + 1) for place in range(len(hashes))), 1)
        key = SessionKey(session) if session is not None else None
        given = Turn("/v1/chat/completions", "m", OPEN_TENANT, key, "x", chain).replace(**more)
        count = 100 * len(hashes) if prompt is None else prompt
        usage = Usage(count, reply, cached) if prompt != 0 else None
        decision = Decision(ReplicaId("r"), Kind.HOME, "", "p", (), None, None, 100 * len(hashes), 0, 0, 0.0)
        self.now = at + seconds
        self._log.on_ended(Ended(given, decision, outcome, usage, None, seconds, 0.0))

    def read(self) -> AccessReader:
        reader = AccessReader()
        for number, line in enumerate(self.lines, 1):
            reader.take(number, line)
        return reader


@pytest.fixture
def log() -> Log:
    return Log()


def test_sessions_turns_and_tokens_come_out_as_they_went_in(log: Log) -> None:
    log.turn("a", "s x", at=10.0, reply=50, seconds=2.0)
    log.turn("b", "s y", at=11.0)
    log.turn("a", "s x r q", at=15.0, reply=7, last=True)
    a, b = log.read().sessions()
    assert (a.id, a.at_s, b.id, b.at_s) == ("a/m", 0.0, "b/m", 1.0)
    first, second = a.turns
    assert (first.at_s, first.prompt_tokens, first.output_tokens, first.think_s) == (0.0, 200, 50, 0.0)
    assert (second.at_s, second.prompt_tokens, second.output_tokens, second.think_s) == (5.0, 400, 7, 3.0)
    assert (first.last, second.last) == (False, True)
    assert second.chain is not None
    assert (len(second.chain.hashes), second.chain.ends, second.chain.opening) == (
        4,
        (400, 800, 1200, 1600),
        1,
    )
    assert log.read().notes() == ()


def test_blocks_are_shared_as_far_as_the_segments_are(log: Log) -> None:
    log.turn("a", "s x", at=10.0)
    log.turn("a", "s x r q", at=15.0)
    log.turn("a", "s x r z", at=20.0)
    log.turn("b", "s y", at=21.0)
    a, b = log.read().sessions()
    first, second, third = a.turns
    # 200 tokens are three full blocks of 64, and the fourth ends in what follows.
    assert (len(first.fresh), second.kept, len(second.fresh)) == (3, 3, 3)
    # 300 tokens are shared: four full blocks.
    assert (third.kept, len(third.fresh)) == (4, 2)
    assert set(second.fresh[-2:]).isdisjoint(third.fresh)
    # The system prompt's 100 tokens are one block in every session.
    assert b.turns[0].fresh[0] == first.fresh[0]
    assert b.turns[0].fresh[1] != first.fresh[1]


def test_reported_tokens_stretch_what_is_new_and_leave_what_was_there(log: Log) -> None:
    log.turn("a", "s x", at=10.0, prompt=1000)
    log.turn("a", "s x r q", at=15.0, prompt=1100)
    [a] = log.read().sessions()
    first, second = a.turns
    assert (first.prompt_tokens, second.prompt_tokens) == (1000, 1100)
    assert second.kept == len(first.fresh) == 1000 // BLOCK_TOKENS
    assert second.kept + len(second.fresh) == 1100 // BLOCK_TOKENS


def test_a_shorter_report_than_before_is_no_trouble(log: Log) -> None:
    log.turn("a", "s x y", at=10.0, prompt=1000)
    log.turn("a", "s x y z", at=15.0, prompt=500)
    log.turn("a", "s x y", at=20.0, prompt=400)
    [a] = log.read().sessions()
    assert [turn.prompt_tokens for turn in a.turns] == [1000, 500, 400]
    for turn in a.turns:
        assert turn.kept + len(turn.fresh) == turn.prompt_tokens // BLOCK_TOKENS


def test_turns_are_ordered_by_their_arrival_not_by_their_end(log: Log) -> None:
    log.turn("a", "s quick", at=12.0, seconds=1.0)
    log.turn("a", "s slow", at=10.0, seconds=30.0)
    [a] = log.read().sessions()
    assert [(turn.at_s, turn.think_s) for turn in a.turns] == [(0.0, 0.0), (2.0, 0.0)]


def test_sub_agents_are_nested_in_those_that_started_them(log: Log) -> None:
    log.turn("p", "s x", at=10.0)
    log.turn("c", "s x c", at=12.0, parent=SessionKey("p"))
    log.turn("g", "s x g", at=13.0, parent=SessionKey("c"))
    log.turn("p", "s x y", at=20.0)
    log.turn("d", "s x d", at=22.0, parent=SessionKey("p"))
    log.turn("e", "s e", at=23.0, parent=SessionKey("unknown"))
    log.turn("f", "s f", at=5.0, parent=SessionKey("p"))
    sessions = log.read().sessions()
    assert [session.id for session in sessions] == ["f/m", "p/m", "e/m"]
    parent = sessions[1]
    assert [(agent.session.id, agent.at_s, agent.after) for agent in parent.agents] == [
        ("c/m", 2.0, 1),
        ("d/m", 12.0, 2),
    ]
    assert [agent.session.id for agent in parent.agents[0].session.agents] == ["g/m"]


def test_what_cannot_be_used_is_counted_by_reason_with_its_first_line(log: Log) -> None:
    log.turn(None, "s x", at=1.0)
    log.turn("a", "", at=2.0)
    log.turn("a", "s x", at=3.0, outcome=Outcome.DIED)
    log.turn("a", "s x", at=4.0, outcome=Outcome.CLIENT_ERROR)
    log.turn("a", "s x", at=5.0, computes=False)
    log.turn("a", "s x", at=6.0, response_id="r")
    log.lines.append(b'{"homing":1,"at":7.0,"session":"a","refused":"overloaded"}\n')
    log.lines.append(b'{"homing":1,"at":8.0,"sess\n')
    log.lines.append(b'{"homing":1,"at":8.0,"session":"a","outcome":"left"}\n')
    log.turn("a", "s x y", at=9.0, prompt=0, outcome=Outcome.CANCELLED)
    reader = log.read()
    [a] = reader.sessions()
    assert [turn.prompt_tokens for turn in a.turns] == [300]
    assert set(reader.notes()) == {
        "1 line not used: without a session (the first is line 1)",
        "1 line not used: without a prompt (the first is line 2)",
        "2 lines not used: failed, or refused by the replica (the first is line 3)",
        "1 line not used: computes no prompt (the first is line 5)",
        "1 line not used: goes on from a stored response (the first is line 6)",
        "1 line not used: refused by the router (the first is line 7)",
        "1 line not used: left while it waited (the first is line 9)",
        "1 line not used: not whole, or no line of an access log (the first is line 8)",
        "1 turns reported no prompt tokens: the router's estimate is used",
    }


def test_a_log_that_begins_or_breaks_in_mid_session_is_used_from_the_next_whole_chain_on(log: Log) -> None:
    log.turn("a", "s x", at=1.0)
    log.turn("a", "s y z", at=2.0)
    log.turn("a", "s y z w", at=3.0)
    del log.lines[1]
    log.begun += 1
    log.turn("a", "s y z w v", at=4.0)
    reader = log.read()
    [a] = reader.sessions()
    # The line that is missing had segments of its own, which the third one goes on from.
    assert [turn.prompt_tokens for turn in a.turns] == [200, 500]
    assert reader.notes() == ("1 line not used: goes on from a line that is not there (the first is line 2)",)


def test_a_chain_that_is_none_is_not_used(log: Log) -> None:
    log.turn("a", "s x", at=1.0)
    line = json.loads(log.lines.pop())
    for fault in (
        {"new": "xyz"},
        {"sizes": [1]},
        {"sizes": [5, -1]},
        {"keep": -1},
        {"keep": 2, "after": "0"},
    ):
        log.lines.append(json.dumps({**line, **fault}).encode())
    reader = log.read()
    assert reader.sessions() == ()
    assert "5 lines not used" in reader.notes()[0]


def test_a_format_of_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2"):
        AccessReader().take(1, b'{"homing":2,"at":1.0}')


def test_any_log_is_made_of_prompts_that_fit_their_blocks(log: Log) -> None:
    rng = Random(5)
    texts: dict[str, str] = {}
    for number in range(400):
        session = rng.choice("abcdef")
        words = texts.get(session, "s").split()
        if rng.random() < 0.2:
            words = words[: rng.randrange(1, len(words) + 1)]
        words += [str(rng.random()) for _ in range(rng.randrange(3))]
        texts[session] = " ".join(words)
        log.turn(session, texts[session], at=float(number), prompt=len(words) * 100 + rng.randrange(-40, 40))
        if rng.random() < 0.02:
            log.begun += 1
    reader = log.read()
    assert reader.notes() == ()
    assert sum(len(session.turns) for session in reader.sessions()) == 400
    for session in reader.sessions():
        blocks: list[int] = []
        for turn in session.turns:
            assert turn.kept <= len(blocks)
            blocks = [*blocks[: turn.kept], *turn.fresh]
            assert len(blocks) == turn.prompt_tokens // BLOCK_TOKENS
            assert len(set(blocks)) == len(blocks)
