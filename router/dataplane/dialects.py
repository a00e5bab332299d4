"""What a request body says to the router, by the dialect of its endpoint.

Only the head of a body is decoded; prompts stay the bytes that they are. Whatever routing need not know is
left for the replica to judge.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from keyword import iskeyword
from operator import attrgetter
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.base.errors import ErrorKind, Refused
from router.base.ids import SessionKey, TenantId
from router.core.hashing import hash64
from router.core.request import EMPTY_CHAIN, Chain
from router.dataplane.fingerprint import Message, Segments
from router.dataplane.outline import BodyOutline
from router.dataplane.shape import check_shape
from router.dataplane.splice import EXTRA, RESERVED
from router.dataplane.stems import LEAST, MOST, Mark, News, Stem, Stems, end_of_messages, is_all


class Dialect(StrEnum):
    """Endpoints whose bodies and answers look alike."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    TOKENIZE = "tokenize"
    """Bodies like chat or completions, answers like neither."""
    POOLING = "pooling"
    """Embeddings, scores and the like: a prompt and no reply."""


_PATHS: Final = {
    "/v1/chat/completions": Dialect.CHAT,
    "/v1/completions": Dialect.COMPLETIONS,
    "/v1/responses": Dialect.RESPONSES,
    "/v1/messages": Dialect.MESSAGES,
    "/v1/messages/count_tokens": Dialect.MESSAGES,
    "/tokenize": Dialect.TOKENIZE,
    "/v1/embeddings": Dialect.POOLING,
    "/v1/rerank": Dialect.POOLING,
    "/v1/score": Dialect.POOLING,
    "/v1/classify": Dialect.POOLING,
    "/v1/pooling": Dialect.POOLING,
}


# A member looked up on its class costs as much as the comparison.
_RESPONSES: Final = Dialect.RESPONSES

_GROWING: Final = frozenset({Dialect.CHAT, Dialect.MESSAGES})
"""Those whose prompt is the whole conversation, as a list of messages."""


def dialect_of(path: str) -> Dialect | None:
    """The dialect of a path without its query; `None` where the body's prompt, if any, is not known."""
    return _PATHS.get(path)


class Read:
    """What a body says."""

    __slots__ = (
        "asks_usage",
        "chain",
        "has_stream_options",
        "model",
        "opening",
        "outline",
        "previous_response_id",
        "reserved",
        "session_value",
        "stores",
        "stream",
    )

    def __init__(
        self,
        model: str,
        chain: Chain,
        *,
        stream: bool,
        session_value: tuple[str, str] | None,
        previous_response_id: str | None,
        opening: int,
        stores: bool,
        reserved: bool,
        has_stream_options: bool,
        asks_usage: bool,
        outline: BodyOutline | None,
    ) -> None:
        self.model = model
        """"" where it names none."""
        self.chain = chain
        self.stream = stream
        self.session_value = session_value
        """The body field that names the session, and the name. The first of the configured fields that has a
        text or a number which is not empty."""
        self.previous_response_id = previous_response_id
        self.opening = opening
        """Hash of the conversation's opening, to derive a session from; 0 where there is none, or where the
        rules say not to. Only chats and completions have one."""
        self.stores = stores
        """The replica may keep its answer, for later requests to go on from (Responses only)."""
        self.reserved = reserved
        """Some field of `splice.RESERVED` is there or among the extra ones, whatever its value and however it
        is spelled."""
        self.has_stream_options = has_stream_options
        self.asks_usage = asks_usage
        """The client asked for the usage of a stream, or gave options that are for the replica to refuse."""
        self.outline = outline
        """What the chain's segments are; `None` where there is no chain. Holds on to the body."""


# What changes the rendered prompt beside tools and messages, by dialect: vLLM's chat parameters, and what
# says how the text becomes tokens. `tool_choice` and `response_format` are left out on purpose: next to no
# template renders them, and agents change them from turn to turn.
_TOKENS: Final = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side", "mm_processor_kwargs")
_CHAT: Final = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "media_io_kwargs",
    *_TOKENS,
)
_RENDERING: Final[dict[Dialect | None, tuple[str, ...]]] = {
    Dialect.CHAT: _CHAT,
    Dialect.COMPLETIONS: ("suffix", "prompt_embeds", *_TOKENS),
    Dialect.RESPONSES: (
        "previous_response_id",
        "previous_response",
        "previous_input_messages",
        "chat_template_kwargs",
        "reasoning",
        "truncation",
        *_TOKENS,
    ),
    Dialect.MESSAGES: ("chat_template_kwargs", "thinking", "output_config"),
    Dialect.TOKENIZE: _CHAT,
    # The documents of a pooling request are prompts of their own.
    Dialect.POOLING: tuple(name for name in _CHAT if name != "documents"),
    None: (),
}

_POOLED: Final = (
    *("input", "prompt", "query", "queries", "text_1", "data_1"),
    *("documents", "items", "text_2", "data_2"),
)

_Field = tuple[str, Any, Any]
"""Name, type and default, as `msgspec.defstruct` takes them."""

_MESSAGES: Final[_Field] = ("messages", list[Message] | UnsetType, UNSET)

# By dialect, what makes the prompt. A plain name is a member of any type, kept as sent.
_PROMPT: Final[dict[Dialect | None, tuple[str | _Field, ...]]] = {
    Dialect.CHAT: (_MESSAGES, "tools"),
    Dialect.COMPLETIONS: ("prompt",),
    Dialect.RESPONSES: ("instructions", "tools", "input"),
    Dialect.MESSAGES: (_MESSAGES, "system", "tools"),
    Dialect.TOKENIZE: (_MESSAGES, "tools", "prompt"),
    Dialect.POOLING: (_MESSAGES, "tools", *_POOLED),
    None: (),
}

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

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_TEXT: Final = msgspec.json.Decoder(str)
_ITEMS: Final = msgspec.json.Decoder(list[Message])


class RequestReader:
    """Reads request bodies under one policy's session rules."""

    __slots__ = ("_derive", "_readings", "_stems")

    def __init__(self, *, body_fields: tuple[str, ...], derive: bool, keep_bytes: int = 0) -> None:
        """`body_fields` may hold a session id, the first first: a member, or `member.member`. `derive`:
        make an opening of conversations, whether or not they have an id. `keep_bytes`: how much of the latest
        bodies is kept, so that no conversation is read from its beginning at each turn."""
        self._readings = {dialect: _Reading(dialect, body_fields) for dialect in (*Dialect, None)}
        self._derive = derive
        self._stems = Stems(keep_bytes)

    def read(self, path: str, body: bytes, tenant: TenantId, session: SessionKey | None = None) -> Read:
        """What `body` says. Raises `Refused` for what is not a JSON object in UTF-8, is nested too deep,
        has a `model`, `stream` or `messages` of the wrong type, a name that is too long, or too many values.

        Of a path without a dialect, only the members that all bodies have in common are read. `session`: one
        of the tenant's, as the head names it. Its bodies are read from where the last one ended; what is read
        is the same.
        """
        dialect = _PATHS.get(path)
        reading = self._readings[dialect]
        long = session is not None and LEAST <= len(body) < MOST and dialect in _GROWING
        if long:
            assert session is not None
            stem = self._stems.find(session)
            if stem is not None and stem.made.path == path and stem.made.tenant == tenant:
                news = stem.news(body)
                if news is not None:
                    return self._go_on(reading, stem, body, news, session)
        try:
            if not body.isascii():
                body.decode()
            check_shape(body)
            usual = reading.decode_usual(body)
            head = usual if usual is not None else reading.decode(body)
            model = head.model or ""
            plain = usual is not None or reading.is_plain(head)
            chain, outline, care = reading.chain(head, tenant, model, plain=plain)
        except UnicodeDecodeError as error:
            raise _refused(f"is not UTF-8: byte {error.start} is wrong") from error
        except msgspec.ValidationError as error:
            raise _refused(f"is not as expected: {error}") from error
        except msgspec.DecodeError as error:
            raise _refused(f"is not JSON: {_what(error, body)}") from error
        except RecursionError as error:
            raise _refused("is nested too deep") from error
        options = head.stream_options
        has_options, asks_usage = (False, False) if options is UNSET else _usage_options(options)
        responses = dialect is _RESPONSES
        read = Read(
            model,
            chain,
            stream=bool(head.stream),
            session_value=None if plain else reading.session_value(head),
            previous_response_id=_response_id(head.previous_response_id) if responses else None,
            opening=chain.hashes[chain.opening - 1] if chain.opening and self._derive else 0,
            stores=responses and (head.store is UNSET or bytes(head.store) not in _NOT_STORED),
            reserved=False if plain else reading.is_reserved(head),
            has_stream_options=has_options,
            asks_usage=asks_usage,
            outline=outline,
        )
        if long and plain and chain.system:
            assert session is not None
            self._keep(body, head, read, care, path, tenant, session)
        return read

    def _keep(
        self,
        body: bytes,
        head: "_Head",
        read: Read,
        care: int,
        path: str,
        tenant: TenantId,
        session: SessionKey,
    ) -> None:
        """Keep a body that was read, if it is plain where its messages begin and end."""
        messages = head.messages
        span = end_of_messages(body, messages) if not isinstance(messages, UnsetType) else None
        if span is not None and is_all(body, *span):
            mark = Mark(span[1], body.count(b"{"), _note(read.chain, care))
            self._stems.keep(session, Stem(body, [mark], _Made(path, tenant, read)))

    def _go_on(
        self,
        reading: "_Reading",
        stem: Stem,
        body: bytes,
        news: News,
        session: SessionKey,
    ) -> Read:
        """What a body says that goes on from a stem, or from a turn that led to it."""
        made: _Made = stem.made
        known: int
        care: int
        known, care = news.mark.note
        segments = Segments.going_on(made.chain, known, care)
        if news.messages or known < len(made.chain.hashes):
            reading.add_news(segments, news.messages, made.chain.opening)
            hashes, ends = tuple(segments.hashes), tuple(segments.ends)
            made = made.grown(Chain(hashes, ends, made.chain.opening, made.chain.system))
            stem = stem.grown(body, news, _note(made.chain, segments.care), made)
        self._stems.keep(session, stem)
        return made.read(reading.outline_of(segments, body))


def _note(chain: Chain, care: int) -> tuple[int, int]:
    """What to know again of a turn: its segments, and how many objects may yet be looked into."""
    return len(chain.hashes), care


class _Made:
    """What is known of a body that is kept, but for what would hold on to its bytes."""

    __slots__ = (
        "asks_usage",
        "chain",
        "has_stream_options",
        "model",
        "opening",
        "path",
        "stream",
        "tenant",
    )

    def __init__(self, path: str, tenant: TenantId, read: Read) -> None:
        self.path = path
        self.tenant = tenant
        self.model = read.model
        self.chain = read.chain
        self.stream = read.stream
        self.opening = read.opening
        self.has_stream_options = read.has_stream_options
        self.asks_usage = read.asks_usage

    def grown(self, chain: Chain) -> "_Made":
        """The same of a body with other messages."""
        made = _Made(self.path, self.tenant, self.read(None))
        made.chain = chain
        return made

    def read(self, outline: BodyOutline | None) -> Read:
        """What a body says that is no other than the one that is kept."""
        return Read(
            self.model,
            self.chain,
            stream=self.stream,
            session_value=None,
            previous_response_id=None,
            opening=self.opening,
            stores=False,
            reserved=False,
            has_stream_options=self.has_stream_options,
            asks_usage=self.asks_usage,
            outline=outline,
        )


class _Head(Protocol):
    """What every decoded head has. What its dialect adds is read by name."""

    model: str | None
    stream: bool | None
    stream_options: Raw | UnsetType
    previous_response_id: Raw | UnsetType
    store: Raw | UnsetType
    messages: list[Message] | UnsetType
    """Of dialects that have any."""


class _Reading:
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
        self._rendering = _RENDERING[dialect]
        fields: dict[str, _Field] = {
            "model": ("model", str | None, None),
            "stream": ("stream", bool | None, None),
        }
        for field in (
            *_PROMPT[dialect],
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
        self.decode = cast("Callable[[bytes], _Head]", msgspec.json.Decoder(head).decode)
        # One look tells most bodies apart from those with anything that is seldom sent.
        seldom = {
            name: fields[name]
            for name in (*RESERVED, EXTRA, *self._rendering, *(top for top, _, _ in names.values()))
        }
        self._usual: Callable[[bytes], _Head] | None = None
        self._unusual = 0
        known = ("model", "stream", "stream_options", *(_name_of(field) for field in _PROMPT[dialect]))
        if dialect in _USUAL and seldom.keys().isdisjoint(known):
            names_of = dict.fromkeys((*known, *_USUAL[dialect]))
            self._usual = cast(
                "Callable[[bytes], _Head]",
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
        self._add_prompt = _ADD_PROMPT[dialect]
        self._billing = dialect is Dialect.MESSAGES
        self._roots: dict[tuple[TenantId, str], int] = {}

    def decode_usual(self, body: bytes) -> _Head | None:
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

    def is_plain(self, head: _Head) -> bool:
        """Whether the body has no member that names a session, is reserved, or changes the rendering."""
        return bool(self._optional(head) == self._optional_values)

    def is_reserved(self, head: _Head) -> bool:
        """Whether the body has a member that is the router's to set, or its extra parameters have one."""
        if self._reserved(head) != _NOTHING_RESERVED:
            return True
        extra = _raw(self._extra(head))
        return extra.startswith(b"{") and not _OBJECT.decode(extra).keys().isdisjoint(RESERVED)

    def session_value(self, head: _Head) -> tuple[str, str] | None:
        """The first configured member that names a session, and the name."""
        for path, member, inner in self._session:
            value = member(head)
            if inner and isinstance(value, Raw):
                try:
                    value = _OBJECT.decode(value).get(inner)
                except msgspec.DecodeError:
                    continue
            text = _text_or_number(value) if isinstance(value, Raw) else value
            if text and isinstance(text, str):
                return path, text
        return None

    def chain(
        self, head: _Head, tenant: TenantId, model: str, *, plain: bool
    ) -> tuple[Chain, BodyOutline | None, int]:
        """The fingerprint of the body's prompt, its outline, and what is left of `CARE`; empty where there is
        no prompt."""
        root = self._roots.get((tenant, model))
        if root is None:
            name = model.encode()
            if len(name) > MAX_MODEL:
                # Names are kept, by everything that learns of models. Longer ones never get into `_roots`, so
                # only a name that is new here has to be measured.
                raise _refused(f"names a model in {len(name)} bytes; {MAX_MODEL} is the limit")
            if len(self._roots) >= _ROOTS:
                self._roots.clear()
            root = self._roots[tenant, model] = hash64(_sized(tenant.encode(), name))
        size = 0
        if not plain:
            for member in self._rendering:
                raw = _rendered(member, getattr(head, member))
                if raw:
                    root = hash64(_sized(member.encode(), raw), root)
                    size += len(raw) if member == "documents" else 0
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


def _name_of(field: str | _Field) -> str:
    return field if isinstance(field, str) else field[0]


MAX_MODEL: Final = 512
"""Bytes of a model's name."""
MAX_RESPONSE_ID: Final = 256
"""Bytes of a stored response's id. Replicas make theirs in some 40."""
_NOT_STORED: Final = (b"false", b"null", b"0")
_ROOTS: Final = 1024
"""Pairs of tenant and model whose root hash is remembered."""
_NOTHING_RESERVED: Final = (UNSET,) * len(RESERVED)


def _sized(*texts: bytes) -> bytes:
    """Texts one after the other, each after its length, so that none can be taken for another."""
    return b"".join(b"%d:%b" % (len(text), text) for text in texts)


def _raw(value: Raw | UnsetType) -> bytes:
    """A member as sent; empty where it is absent or null."""
    if isinstance(value, UnsetType):
        return b""
    raw = bytes(value)
    return b"" if raw == b"null" else raw


def _rendered(member: str, value: Raw | UnsetType) -> bytes:
    """What of a member reaches the prompt; empty if nothing does."""
    raw = _raw(value)
    if not raw or member not in ("reasoning", "output_config", "thinking"):
        return raw
    try:
        inner = _OBJECT.decode(raw)
    except msgspec.DecodeError:
        return raw
    if member != "thinking":
        return _raw(inner.get("effort", UNSET))
    # A budget bounds the reply. Only thinking that is switched off is told to the template.
    kind = _raw(inner.get("type", UNSET))
    return kind if kind == b'"disabled"' else b""


def _add_messages(head: Any, segments: Segments) -> int:
    """Chat: tools, then messages. The answer of all these is how many segments make the opening."""
    if tools := _raw(head.tools):
        segments.add_tools(tools)
    return 0 if head.messages is UNSET else segments.add_messages(head.messages)


def _add_anthropic(head: Any, segments: Segments) -> int:
    if tools := _raw(head.tools):
        segments.add_tools(tools)
    if system := _raw(head.system):
        segments.add_system(system)
    return 0 if head.messages is UNSET else segments.add_messages(head.messages, billing=True)


def _add_responses(head: Any, segments: Segments) -> int:
    if instructions := _raw(head.instructions):
        segments.add_system(instructions)
    if tools := _raw(head.tools):
        segments.add_tools(tools)
    sent = _raw(head.input)
    if not sent:
        return 0
    if not sent.startswith(b"["):
        # A string is what a single message of the user would be.
        return segments.add_messages(({"role": Raw(b'"user"'), "content": head.input},))
    try:
        items = _ITEMS.decode(sent)
    except msgspec.ValidationError:
        segments.add(sent)
        return 0
    return segments.add_messages(items)


def _add_completion(head: Any, segments: Segments) -> int:
    """A bare prompt shows no turns: all of it is the opening. To end the opening after a first stretch would
    make one session of all conversations that share a long preamble."""
    if prompt := _raw(head.prompt):
        segments.add_prompt(prompt)
    return len(segments.hashes) if prompt else 0


def _add_tokenize(head: Any, segments: Segments) -> int:
    if head.messages is not UNSET:
        return _add_messages(head, segments)
    return _add_completion(head, segments)


def _add_pooling(head: Any, segments: Segments) -> int:
    if head.messages is not UNSET:
        _add_messages(head, segments)
    for name in _POOLED:
        if prompt := _raw(getattr(head, name)):
            segments.add_prompt(prompt)
    return 0


def _add_nothing(_head: Any, _segments: Segments) -> int:
    return 0


_ADD_PROMPT: Final[dict[Dialect | None, Callable[[Any, Segments], int]]] = {
    Dialect.CHAT: _add_messages,
    Dialect.COMPLETIONS: _add_completion,
    Dialect.RESPONSES: _add_responses,
    Dialect.MESSAGES: _add_anthropic,
    Dialect.TOKENIZE: _add_tokenize,
    Dialect.POOLING: _add_pooling,
    None: _add_nothing,
}


def _usage_options(options: Raw | UnsetType) -> tuple[bool, bool]:
    """Whether there are stream options, and whether they are to be left alone: because they ask for usage,
    or because they are no options."""
    if isinstance(options, UnsetType):
        return False, False
    raw = bytes(options)
    if raw == b"null":
        return True, False
    try:
        asks = _raw(_OBJECT.decode(raw).get("include_usage", UNSET))
    except msgspec.DecodeError:
        return True, True
    return True, asks not in (b"", b"false")


def _text(value: Raw | UnsetType) -> str | None:
    """A member that is a text with something in it."""
    raw = _raw(value)
    return _TEXT.decode(raw) or None if raw.startswith(b'"') else None


def _response_id(value: Raw | UnsetType) -> str | None:
    """The id of a stored response. Raises `Refused` for one that no replica can have made."""
    text = _text(value)
    if text is not None and len(text) > MAX_RESPONSE_ID:
        raise _refused(f"has a previous_response_id of more than {MAX_RESPONSE_ID} bytes")
    return text


def _text_or_number(value: Raw) -> str | None:
    raw = bytes(value)
    return _text(value) if raw[:1] not in b"-0123456789" else raw.decode()


def _refused(what: str) -> Refused:
    return Refused(ErrorKind.BAD_REQUEST, f"The request body {what}.")


def _what(error: msgspec.DecodeError, body: bytes) -> str:
    if body.rstrip().endswith(b"}") and "truncated" in str(error):
        # The decoder's word for an escaped surrogate without its other half; engines cannot encode it.
        return f"{error}, or a string holds half of a surrogate pair"
    return str(error)
