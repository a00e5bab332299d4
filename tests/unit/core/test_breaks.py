"""Which part of a prompt differs, and what became of it. A prompt is written as words: `system:text`."""

import re

import pytest

from router.core.breaks import MEANT, Break, Cause, find_difference
from router.core.hashing import digest64
from router.core.outline import (
    CONTINUES,
    FIRST_ROLE,
    NO_HASH,
    PROMPT,
    ROLES,
    ROOT,
    SYSTEM,
    TOOLS,
    Drawing,
    Outline,
    Part,
)

TAGS = {"tools": TOOLS, "system": SYSTEM, "prompt": PROMPT} | {
    f"m-{role}": FIRST_ROLE + at for at, role in enumerate(ROLES)
}
SHORT = {"u": "m-user", "a": "m-assistant", "t": "m-tool", "s": "m-system"}


def prompt(written: str, root: str = "model") -> Outline:
    """Words of `part:text`; `+` in a text begins a further stretch of it."""
    made = Drawing()
    made.add(ROOT, digest64(root.encode()), NO_HASH)
    for word in written.split():
        name, _, text = word.partition(":")
        tag = TAGS[SHORT.get(name, name)]
        for place, stretch in enumerate(text.split("+")):
            whole = re.sub(r"\d", "", text).encode()
            made.add(
                tag | (CONTINUES if place else 0),
                digest64(stretch.encode()),
                NO_HASH if place else digest64(whole),
            )
    return made.outline()


HISTORY = "tools:T system:S u:1st a:two u:three a:four u:five"


@pytest.mark.parametrize(
    ("before", "after", "part", "cause", "message"),
    [
        # The system prompt has the time in it, as a member, as a message, at the end of a long one.
        ("system:at-9:59 u:hi", "system:at-10:00 u:hi a:yes u:and", Part.SYSTEM, Cause.DIGITS, None),
        ("s:at-9:59 u:hi", "s:at-10:00 u:hi a:yes u:and", Part.SYSTEM, Cause.DIGITS, 0),
        ("s:long+long+9:59 u:hi", "s:long+long+10:00 u:hi a:yes u:and", Part.SYSTEM, Cause.DIGITS, 0),
        ("s:be-kind u:hi", "s:be-brief u:hi a:yes u:and", Part.SYSTEM, Cause.CHANGED, 0),
        # Tools.
        ("tools:AB system:S u:x", "tools:ABC system:S u:x a:y u:z", Part.TOOLS, Cause.CHANGED, None),
        ("tools:AB system:S u:x", "system:S u:x a:y u:z", Part.TOOLS, Cause.REMOVED, None),
        ("system:S u:x", "tools:AB system:S u:x a:y u:z", Part.TOOLS, Cause.INSERTED, None),
        ("tools:A1 system:at-1 u:x", "tools:A2 system:at-2 u:x a:y u:z", Part.TOOLS, Cause.DIGITS, None),
        # Messages.
        (HISTORY, HISTORY.replace("three", "THREE") + " a:six u:7th", Part.MESSAGE, Cause.CHANGED, 2),
        (HISTORY, HISTORY.replace("a:two", "a:two t:late") + " a:six", Part.MESSAGE, Cause.INSERTED, 2),
        (HISTORY, HISTORY.replace(" u:1st a:two", "") + " a:six", Part.MESSAGE, Cause.REMOVED, 0),
        ("u:b a:1 u:c a:2", "u:c a:1 u:b a:2 u:d", Part.MESSAGE, Cause.REORDERED, 0),
        ("u:b t:5-min-ago u:c", "u:b t:6-min-ago u:c a:d", Part.MESSAGE, Cause.DIGITS, 1),
        # A note at the end of a prompt that the next one leaves out.
        ("u:b a:1 u:c-NOTE", "u:b a:1 u:c a:2 u:d", Part.MESSAGE, Cause.CHANGED, 2),
        # Every message shows how long ago it was.
        ("u:b-1m a:x-1m u:c-0m", "u:b-2m a:x-2m u:c-1m a:y-0m", Part.MESSAGE, Cause.DIGITS, 0),
        # Compactions: everything replaced; the opening kept; the latest messages kept.
        (HISTORY, "tools:T system:S u:summary", Part.MESSAGE, Cause.COMPACTED, 0),
        (HISTORY, "tools:T system:S u:1st u:summary", Part.MESSAGE, Cause.COMPACTED, 1),
        (HISTORY, "tools:T system:S u:summary a:four u:five", Part.MESSAGE, Cause.COMPACTED, 0),
        # Taken up again: cut short, another question, the last question asked otherwise.
        (HISTORY, "tools:T system:S u:1st a:two u:three", Part.MESSAGE, Cause.REWOUND, 3),
        (HISTORY, "tools:T system:S u:1st a:two u:else", Part.MESSAGE, Cause.REWOUND, 2),
        (HISTORY, HISTORY.replace("u:five", "u:fifth"), Part.MESSAGE, Cause.REWOUND, 4),
        # Another conversation under the same id.
        (HISTORY, "system:sub u:task", Part.SYSTEM, Cause.OTHER, None),
        ("system:S u:task", "system:sub u:other a:b u:c", Part.SYSTEM, Cause.OTHER, None),
        ("prompt:a+b+c", "prompt:a+x+c+d", Part.PROMPT, Cause.CHANGED, None),
    ],
)
def test_the_part_that_differs_and_what_became_of_it(
    before: str, after: str, part: Part, cause: Cause, message: int | None
):
    found = find_difference(prompt(before), prompt(after))
    assert (found.part, found.cause, found.message) == (part, cause, message)


def test_messages_without_a_shape_speak_neither_for_nor_against_being_in_their_places():
    before = prompt("u:at-1 a:b u:c-1 a:d u:e")
    after = prompt("u:at-2 a:x u:c-2 a:y u:z a:more")
    assert find_difference(before, after).cause is Cause.OTHER
    for at in (2, 4, 5):
        before.shapes[at] = 0
    assert find_difference(before, after).cause is Cause.DIGITS
    # Nothing at all is known of what follows.
    before.shapes[3] = 0
    assert find_difference(before, after).cause is Cause.OTHER


def test_another_model_template_or_tenant_is_no_matter_of_messages():
    found = find_difference(prompt("s:S u:x"), prompt("s:S u:x a:y", root="template"))
    assert (found.part, found.cause, found.common) == (Part.PARAMETERS, Cause.CHANGED, 0)


def test_what_lies_beyond_what_is_kept_is_not_guessed_at():
    before = prompt(HISTORY)
    before.cut(3)
    assert find_difference(before, prompt(HISTORY)).cause is Cause.UNKNOWN


def test_the_common_segments_of_a_long_part_count():
    assert find_difference(prompt("s:a+b+c u:x"), prompt("s:a+b+d u:x a:y")).common == 3


def test_compactions_and_the_like_are_meant():
    assert {Cause.COMPACTED, Cause.REWOUND, Cause.OTHER} == MEANT


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            Break(Part.SYSTEM, Cause.DIGITS, None, None, 10, False, 0.0),
            "the system prompt differs in its digits only: a date, a time or a counter;"
            " send it later in the prompt",
        ),
        (Break(Part.MESSAGE, Cause.INSERTED, 3, "tool", 10, False, 0.0), "message 3 (tool) was inserted"),
        (Break(Part.TOOLS, Cause.CHANGED, None, None, 10, False, 0.0), "the tool list changed"),
        (Break(Part.SYSTEM, Cause.CHANGED, 0, "system", 10, True, 0.0), "was lost: send a session id"),
        (Break(Part.PARAMETERS, Cause.CHANGED, None, None, 10, False, 0.0), "what renders the prompt"),
    ],
)
def test_a_break_says_in_words_what_to_look_at(broken: Break, words: str):
    assert words in broken.words()


def test_there_are_words_for_every_part_and_cause():
    for part in Part:
        for cause in Cause:
            assert Break(part, cause, None, None, 0, False, 0.0).words()
