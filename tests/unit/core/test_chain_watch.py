"""Whether turns go on from one another, over a session's life."""

import random
import tracemalloc
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey, TenantId
from router.core.breaks import Cause
from router.core.chain_watch import ChainWatch, Told, told
from router.core.decide import Decision, Kind
from router.core.hashing import digest64, hash64
from router.core.model import Model
from router.core.outline import (
    CONTINUES,
    FIRST_ROLE,
    NO_HASH,
    PROMPT,
    ROLES,
    ROOT,
    Drawing,
    Outline,
    Part,
)
from router.core.request import EMPTY_CHAIN, Chain, Turn

A, B = SessionKey("a"), SessionKey("b")
SYSTEM, USER, REPLY = (FIRST_ROLE + ROLES.index(role) for role in ("system", "user", "assistant"))
SEGMENT = 400
"""Bytes of every segment, and four of them are a token."""


@dataclass
class Prompt:
    """Texts, one a segment: the first the system prompt's, then user and assistant in turns."""

    texts: tuple[str, ...]
    plain: bool = False
    described: int = 0
    """Segments that were looked into."""

    def chain(self) -> Chain:
        hashes = [7]
        for text in self.texts:
            hashes.append(hash64(text.encode(), hashes[-1]))
        ends = tuple(SEGMENT * at for at in range(len(hashes)))
        return Chain(tuple(hashes), ends, min(3, len(hashes)))

    def describe(self, first: int) -> Outline:
        made = Drawing()
        for at, text in enumerate(("", *self.texts)):
            if at >= first:
                tag = PROMPT if self.plain else SYSTEM if at == 1 else USER if at % 2 == 0 else REPLY
                shape = "".join(sign for sign in text if not sign.isdigit())
                made.add(
                    tag if at else ROOT,
                    digest64(text.encode()),
                    digest64(shape.encode()) if at else NO_HASH,
                )
        self.described += len(made.tags)
        return made.outline()


def say(
    watch: ChainWatch,
    words: str,
    *,
    key: SessionKey = A,
    derived: bool = False,
    cached: int = 0,
    plain: bool = False,
    look: bool = False,
    now: float = 5.0,
):
    prompt = Prompt(tuple(words.split()), plain)
    chain = prompt.chain()
    asked = Told(key, chain, derived, chain.ends[-1] // 4, cached, now)
    return (watch.look if look else watch.turn)(asked, prompt.describe)


def test_a_prompt_that_grows_goes_on_and_only_what_is_new_is_looked_into():
    watch = ChainWatch()
    seen = []
    for words in ("s hi", "s hi yes and", "s hi yes and", "s hi yes and so what"):
        prompt = Prompt(tuple(words.split()))
        chain = prompt.chain()
        assert watch.turn(Told(A, chain, False, 100, 0, 0.0), prompt.describe) is None
        seen.append(prompt.described)
    assert seen == [3, 2, 0, 2]
    assert (watch.turns, watch.breaks, watch.last(A)) == (3, {}, None)


def test_after_a_break_only_what_no_conversation_has_in_common_with_it_is_looked_into():
    watch = ChainWatch()
    say(watch, "s hi yes and so what now")
    seen = []
    for words in ("s hi yes", "s hi yes but", "s hi yes but why not", "t hi yes"):
        prompt = Prompt(tuple(words.split()))
        watch.turn(Told(A, prompt.chain(), False, 100, 0, 0.0), prompt.describe)
        seen.append(prompt.described)
    assert seen == [0, 1, 2, 3]


@dataclass
class Long(Prompt):
    """A text is a payload, and each letter of it a segment. No payload is the beginning of another."""

    def chain(self) -> Chain:
        hashes = [7]
        for text in self.texts:
            for at, letter in enumerate(text):
                hashes.append(hash64(letter.encode(), hashes[-1] + (at > 0)))
        return Chain(tuple(hashes), tuple(SEGMENT * at for at in range(len(hashes))), min(3, len(hashes)))

    def describe(self, first: int) -> Outline:
        made = Drawing()
        made.add(ROOT, digest64(b"root"), NO_HASH)
        for text in self.texts:
            for at, letter in enumerate(text):
                tag, shape = (USER | CONTINUES, NO_HASH) if at else (USER, digest64(text.encode()))
                made.add(tag, digest64(letter.encode()), shape)
        return made.outline(first)


@given(
    st.sampled_from([Prompt, Long]),
    st.lists(
        st.lists(st.sampled_from(["a.", "b.", "ab.", "aab.", "aaa."]), min_size=1, max_size=5), max_size=12
    ),
)
def test_what_is_kept_is_the_outline_of_the_whole_however_it_came(kind, prompts: list[list[str]]):
    watch = ChainWatch()
    for words in prompts:
        prompt = kind(tuple(words))
        watch.turn(Told(A, prompt.chain(), False, 100, 0, 0.0), prompt.describe)
        kept, whole = watch._sessions[A].conversations[0], prompt.describe(0)
        if len(kept.outline) == len(whole):  # a shorter one that another goes on from is no news
            assert (kept.outline.tags, kept.outline.own) == (whole.tags, whole.own)
            assert kept.outline.shapes == whole.shapes
        links = [each & 0xFFFF_FFFF for each in prompt.chain().hashes]
        assert kept.links.tolist()[: len(links)] == links
        assert len(kept.links) == len(kept.outline)


def test_a_break_names_its_part_its_cause_and_what_it_cost():
    watch = ChainWatch()
    say(watch, "at-9 hi yes and")
    broken = say(watch, "at-10 hi yes and so what")
    assert broken is not None
    assert (broken.part, broken.cause, broken.message, broken.role) == (
        Part.SYSTEM,
        Cause.DIGITS,
        0,
        "system",
    )
    # Of four segments of 100 tokens that could have been reused, the root's none is left.
    assert (broken.lost_tokens, broken.at, broken.rederived) == (400, 5.0, False)
    assert watch.last(A) == broken
    assert watch.counts(A) == {Cause.DIGITS: 1}
    assert watch.breaks == {(Part.SYSTEM, Cause.DIGITS): 1}
    assert watch.lost_tokens == {(Part.SYSTEM, Cause.DIGITS): 400}
    assert watch.turns == 1


def test_what_is_cached_all_the_same_is_not_lost():
    watch = ChainWatch()
    say(watch, "s hi yes and")
    broken = say(watch, "s hi no and so what", cached=350)
    assert broken is not None
    assert broken.lost_tokens == 50
    assert say(watch, "s hi nono and so what", cached=900).lost_tokens == 0


def test_after_a_break_the_new_prompt_is_what_is_gone_on_from():
    watch = ChainWatch()
    say(watch, "s hi yes and")
    assert say(watch, "s hi no and so").cause is Cause.CHANGED
    assert say(watch, "s hi no and so what") is None
    # The old one is gone, so going back to it is a break again.
    assert say(watch, "s hi yes and more") is not None


def test_conversations_that_take_turns_under_one_id_break_once_each():
    watch = ChainWatch()
    say(watch, "main hi")
    assert say(watch, "sub task").cause is Cause.OTHER
    for length in range(1, 5):
        assert say(watch, "main hi" + " more" * length) is None
        assert say(watch, "sub task" + " word" * length) is None
    assert watch.counts(A) == {Cause.OTHER: 1}


def test_of_many_conversations_under_one_id_the_latest_four_are_kept():
    watch = ChainWatch()
    for name in "abcde":
        say(watch, f"{name} of-{name}")
    assert [say(watch, f"{name} of-{name} more") is None for name in "edcb"] == [True] * 4
    assert say(watch, "a of-a more") is not None


def test_sessions_do_not_mix():
    watch = ChainWatch()
    say(watch, "s hi")
    assert say(watch, "t ho", key=B) is None
    assert say(watch, "t ho yes", key=B) is None
    assert watch.counts(B) == {}


def test_looking_changes_nothing():
    watch = ChainWatch()
    say(watch, "at-9 hi")
    assert say(watch, "at-9 hi yes", look=True) is None
    assert say(watch, "at-10 hi yes", look=True).cause is Cause.DIGITS
    assert say(watch, "x y", key=B, look=True) is None
    assert (watch.turns, watch.breaks, len(watch), watch.last(A)) == (0, {}, 1, None)
    assert say(watch, "at-9 hi yes") is None


def test_the_open_end_of_a_bare_prompt_may_grow():
    watch = ChainWatch()
    say(watch, "one two thr", plain=True)
    assert say(watch, "one two three fo", plain=True) is None
    assert say(watch, "one two three four", plain=True) is None
    broken = say(watch, "one too three four five", plain=True)
    assert (broken.part, broken.cause) == (Part.PROMPT, Cause.CHANGED)


def test_a_derived_session_whose_opening_changes_in_digits_is_found_again():
    watch = ChainWatch()
    say(watch, "at-9 hi", key=A, derived=True)
    broken = say(watch, "at-10 hi yes and", key=B, derived=True)
    assert (broken.part, broken.cause, broken.rederived) == (Part.SYSTEM, Cause.DIGITS, True)
    broken = say(watch, "at-11 hi yes and so what", key=SessionKey("c"), derived=True)
    assert broken.rederived
    assert (len(watch), watch.counts(SessionKey("c"))) == (1, {Cause.DIGITS: 2})


def test_a_new_conversation_with_the_opening_of_another_is_no_break():
    watch = ChainWatch()
    say(watch, "at-9 hi yes and", key=A, derived=True)
    assert say(watch, "at-10 hi no but", key=B, derived=True) is None
    assert say(watch, "at-11 hi", key=SessionKey("c"), derived=True) is None
    assert watch.breaks == {}
    # Nor is one that has an id.
    assert say(watch, "at-12 hi yes and", key=SessionKey("d")) is None


def test_an_outline_that_does_not_fit_its_chain_is_not_used():
    watch = ChainWatch()
    asked = Told(A, Prompt(("s", "hi")).chain(), False, 100, 0, 0.0)
    assert watch.turn(asked, Prompt(("s",)).describe) is None
    assert watch.turn(asked, lambda _first: None) is None
    assert watch.look(asked, lambda _first: None) is None
    assert len(watch) == 0


def test_a_prompt_of_which_not_all_could_be_told_still_goes_on():
    watch = ChainWatch()
    say(watch, "s hi")
    longer = Prompt(("s", "hi", "yes", "and"))
    assert watch.turn(Told(A, longer.chain(), False, 100, 0, 0.0), lambda _first: None) is None
    assert say(watch, "s hi yes and so what") is None
    assert say(watch, "s hi yes but so what more").cause is Cause.UNKNOWN


def test_very_long_prompts_are_followed_though_not_kept_whole():
    watch = ChainWatch()
    texts = "s hi " + " ".join(f"w{number}" for number in range(6000))
    say(watch, texts)
    assert say(watch, texts + " more") is None
    assert say(watch, texts + " less").cause is Cause.UNKNOWN
    assert say(watch, texts.replace("w3000", "x3000")).cause is Cause.CHANGED


def test_memory_is_bounded_and_the_estimate_of_it_holds():
    watch = ChainWatch(max_bytes=1 << 20)
    rng = random.Random(1)

    def fill(first: int, count: int) -> None:
        for number in range(first, first + count):
            say(watch, " ".join(str(rng.random()) for _ in range(40)), key=SessionKey(f"{number:048x}"))

    fill(0, 1000)
    assert 300 < len(watch) < 700
    tracemalloc.start()
    watch = ChainWatch(max_bytes=1 << 20)
    before = tracemalloc.get_traced_memory()[0]
    fill(1000, 1000)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert held < 1 << 20
    assert watch.last(SessionKey("0")) is None


def test_a_single_session_over_the_budget_is_kept():
    watch = ChainWatch(max_bytes=100)
    say(watch, "s hi")
    say(watch, "t ho", key=B)
    assert len(watch) == 1
    assert say(watch, "t ho yes", key=B) is None
    assert watch.turns == 1


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("xyz12"), min_size=1)), max_size=40)
)
def test_the_books_of_bytes_agree_with_what_is_kept(turns: list[tuple[str, list[str]]]):
    watch = ChainWatch(max_bytes=4000)
    for key, words in turns:
        say(watch, " ".join(words), key=SessionKey(key), derived=True)
        kept = sum(
            1500 + 16 * sum(len(each.outline) for each in watched.conversations)
            for watched in watch._sessions.values()
        )
        assert watch._bytes == kept
        assert kept <= 4000 or len(watch) == 1
        assert all(0 < len(watched.conversations) <= 4 for watched in watch._sessions.values())


def test_turns_that_say_nothing_of_a_chain_are_not_watched():
    decision = Decision(ReplicaId("r"), Kind.NEW, "", "p", (), None, None, 120, 20, 0, 3.0)
    model = Model("m")
    turn = Turn("/v1/chat/completions", "m", OPEN_TENANT, A, "derived", Prompt(("s",)).chain())
    asked = told(turn, decision, model)
    assert asked == Told(model.key(A), turn.chain, True, 120, 20, 3.0)
    assert told(turn.replace(session_source="x-session-id", tenant=TenantId("t")), decision, model) == (
        asked.replace(derived=False)
    )
    assert told(turn.replace(session=None), decision, model) is None
    assert told(turn.replace(response_id="resp"), decision, model) is None
    assert told(turn.replace(computes=False), decision, model) is None
    assert told(turn.replace(chain=EMPTY_CHAIN), decision, model) is None


def test_sessions_whose_chains_broke_are_listed_the_latest_first():
    watch = ChainWatch()
    for key in "abc":
        say(watch, "system user reply more", key=SessionKey(key))
    for now, key in ((10.0, "b"), (20.0, "a")):
        say(watch, "system other reply more again", key=SessionKey(key), now=now)
    assert [(key, broken.at) for key, broken in watch.latest(9)] == [(A, 20.0), (B, 10.0)]
    assert [key for key, _ in watch.latest(1)] == [A]
    assert ChainWatch().latest(9) == []
