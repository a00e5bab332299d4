"""How bodies of one dialect are decoded: no more of a head than routing needs, in few steps."""

from collections.abc import Callable, Sequence
from keyword import iskeyword
from operator import attrgetter
from typing import Final, Protocol, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.base.errors import ErrorKind, Refused
from router.base.ids import TenantId
from router.core.hashing import hash64
from router.core.request import EMPTY_CHAIN, Chain
from router.dataplane.dialects import Dialect
from router.dataplane.fingerprint import Message, Segments
from router.dataplane.members import OBJECT, raw, sized, text_or_number
from router.dataplane.outline import BodyOutline
from router.dataplane.prompts import ADD_PROMPT, PROMPT, RENDERING, Field, rendered
from router.dataplane.splice import EXTRA, RESERVED

# What agents send beside the prompt and the members that all bodies have in common: of no interest here, and
# named so that a body of these alone is known to hold nothing else.
_USUAL: Final[dict[Dialect, tuple[str, ...]]] = {
    Dialect.CHAT: (
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed", "n"),
        *("tool_choice", "parallel_tool_calls", "response_format"),
        *("frequency_penalty", "presence_penalty", "logprobs"),
    ),
    Dialect.MESSAGES: (
        *("max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "tool_choice", "metadata"),
    ),
}

_UNUSUAL: Final = 16
"""Bodies that are not taken for usual ones after one that was not: clients repeat themselves."""

MAX_MODEL: Final = 512
"""Bytes of a model's name."""
_ROOTS: Final = 1024
"""Pairs of tenant and model whose root hash is remembered."""
_NOTHING_RESERVED: Final = (UNSET,) * len(RESERVED)


def refused(what: str) -> Refused:
    """The refusal of a body that is, or has, what is said."""
    return Refused(ErrorKind.BAD_REQUEST, f"The request body {what}.")


class Head(Protocol):
    """What every decoded head has. What its dialect adds is read by name."""

    model: str | None
    stream: bool | None
    stream_options: Raw | UnsetType
    previous_response_id: Raw | UnsetType
    store: Raw | UnsetType
    messages: list[Message] | UnsetType
    """Of dialects that have any."""


class Reading:
    """How bodies of one dialect are read."""

    __slots__ = (
        "_add_prompt",
        "_billing",
        "_extra",
        "_optional",
        "_optional_values",
        "_rendering",
        "_reserved",
        "_roots",
        "_session",
        "_unusual",
        "_usual",
        "decode",
    )

    def __init__(self, dialect: Dialect | None, body_fields: Sequence[str]) -> None:
        names = {path: path.partition(".") for path in body_fields}
        self._rendering = RENDERING[dialect]
        fields: dict[str, Field] = {
            "model": ("model", str | None, None),
            "stream": ("stream", bool | None, None),
        }
        for field in (
            *PROMPT[dialect],
            *RESERVED,
            *(EXTRA, "stream_options", "previous_response_id", "store"),
            *self._rendering,
            *(top for top, _, _ in names.values()),
        ):
            if not isinstance(field, str):
                fields[field[0]] = field
            elif field not in fields:
                # A configured member may have any name; one that is no attribute name gets a number.
                plain = field.isidentifier() and not iskeyword(field) and not field.startswith("_")
                fields[field] = (field if plain else f"_{len(fields)}", Raw | UnsetType, UNSET)
        head = msgspec.defstruct(
            "Head",
            list(fields.values()),
            rename={attribute: name for name, (attribute, _, _) in fields.items()},
            gc=False,
        )
        self.decode = cast("Callable[[bytes], Head]", msgspec.json.Decoder(head).decode)
        # One look tells most bodies apart from those with anything that is seldom sent.
        seldom = {
            name: fields[name]
            for name in (*RESERVED, EXTRA, *self._rendering, *(top for top, _, _ in names.values()))
        }
        self._usual: Callable[[bytes], Head] | None = None
        self._unusual = 0
        known = ("model", "stream", "stream_options", *(_name_of(field) for field in PROMPT[dialect]))
        if dialect in _USUAL and seldom.keys().isdisjoint(known):
            names_of = dict.fromkeys((*known, *_USUAL[dialect]))
            self._usual = cast(
                "Callable[[bytes], Head]",
                msgspec.json.Decoder(
                    msgspec.defstruct(
                        "UsualHead",
                        [
                            fields.get(name, (name, Raw | UnsetType, UNSET))
                            for name in names_of
                            if name not in seldom
                        ],
                        forbid_unknown_fields=True,
                        gc=False,
                    )
                ).decode,
            )
        self._optional = attrgetter(*(attribute for attribute, _, _ in seldom.values()))
        self._optional_values = tuple(default for _, _, default in seldom.values())
        self._reserved = attrgetter(*RESERVED)
        self._extra = attrgetter(fields[EXTRA][0])
        self._session = [(path, attrgetter(fields[top][0]), inner) for path, (top, _, inner) in names.items()]
        self._add_prompt = ADD_PROMPT[dialect]
        self._billing = dialect is Dialect.MESSAGES
        self._roots: dict[tuple[TenantId, str], int] = {}

    def decode_usual(self, body: bytes) -> Head | None:
        """The head of a body that has none but the usual members, none of which `is_plain` would object to;
        `None` for any other, and for one that is to be refused."""
        if self._usual is None:
            return None
        if self._unusual:
            self._unusual -= 1
            return None
        try:
            return self._usual(body)
        except (msgspec.DecodeError, RecursionError):
            self._unusual = _UNUSUAL
            return None

    def is_plain(self, head: Head) -> bool:
        """Whether the body has no member that names a session, is reserved, or changes the rendering."""
        return bool(self._optional(head) == self._optional_values)

    def is_reserved(self, head: Head) -> bool:
        """Whether the body has a member that is the router's to set, or its extra parameters have one."""
        if self._reserved(head) != _NOTHING_RESERVED:
            return True
        extra = raw(self._extra(head))
        return extra.startswith(b"{") and not OBJECT.decode(extra).keys().isdisjoint(RESERVED)

    def session_value(self, head: Head) -> tuple[str, str] | None:
        """The first configured member that names a session, and the name."""
        for path, member, inner in self._session:
            value = member(head)
            if inner and isinstance(value, Raw):
                try:
                    value = OBJECT.decode(value).get(inner)
                except msgspec.DecodeError:
                    continue
            name = text_or_number(value) if isinstance(value, Raw) else value
            if name and isinstance(name, str):
                return path, name
        return None

    def chain(
        self, head: Head, tenant: TenantId, model: str, *, plain: bool
    ) -> tuple[Chain, BodyOutline | None, int]:
        """The fingerprint of the body's prompt, its outline, and what is left of `CARE`; empty where there is
        no prompt."""
        root = self._roots.get((tenant, model))
        if root is None:
            name = model.encode()
            if len(name) > MAX_MODEL:
                # Names are kept, by everything that learns of models. Longer ones never get into `_roots`, so
                # only a name that is new here has to be measured.
                raise refused(f"names a model in {len(name)} bytes; {MAX_MODEL} is the limit")
            if len(self._roots) >= _ROOTS:
                self._roots.clear()
            root = self._roots[tenant, model] = hash64(sized(tenant.encode(), name))
        size = 0
        if not plain:
            for member in self._rendering:
                sent = rendered(member, getattr(head, member))
                if sent:
                    root = hash64(sized(member.encode(), sent), root)
                    size += len(sent) if member == "documents" else 0
        segments = Segments(root, size)
        opening = self._add_prompt(head, segments)
        if len(segments.hashes) == 1:
            return EMPTY_CHAIN, None, 0
        chain = Chain(tuple(segments.hashes), tuple(segments.ends), opening, segments.system)
        return chain, BodyOutline(head, self._add_prompt, segments), segments.care

    def add_news(self, segments: Segments, news: list[Message], opening: int) -> None:
        """Further messages of a conversation whose opening is known."""
        segments.add_messages(news, billing=self._billing, opening=opening)

    def outline_of(self, segments: Segments, body: bytes) -> BodyOutline:
        """The outline of a body of which only the end was read."""
        return BodyOutline(None, self._add_prompt, segments, self.decode, body)


def _name_of(field: str | Field) -> str:
    return field if isinstance(field, str) else field[0]
