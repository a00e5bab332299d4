"""What a request body says to the router.

Only the head of a body is decoded; prompts stay the bytes that they are. Whatever routing need not know is
left for the replica to judge.
"""

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from router.base.ids import SessionKey, TenantId
from router.core.request import Chain
from router.dataplane.dialects import Dialect, dialect_of
from router.dataplane.fingerprint import Segments
from router.dataplane.members import OBJECT, raw, text
from router.dataplane.outline import BodyOutline
from router.dataplane.reading import Head, Reading, refused
from router.dataplane.shape import braces, check_shape
from router.dataplane.stems import LEAST, MOST, Mark, News, Stem, Stems, end_of_messages, is_all

# A member looked up on its class costs as much as the comparison.
_RESPONSES: Final = Dialect.RESPONSES

_GROWING: Final = frozenset({Dialect.CHAT, Dialect.MESSAGES})
"""Those whose prompt is the whole conversation, as a list of messages."""

MAX_RESPONSE_ID: Final = 256
"""Bytes of a stored response's id. Replicas make theirs in some 40."""
_NOT_STORED: Final = (b"false", b"null", b"0")


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


class RequestReader:
    """Reads request bodies under one policy's session rules."""

    __slots__ = ("_derive", "_readings", "_stems")

    def __init__(self, *, body_fields: tuple[str, ...], derive: bool, keep_bytes: int = 0) -> None:
        """`body_fields` may hold a session id, the first first: a member, or `member.member`. `derive`:
        make an opening of conversations, whether or not they have an id. `keep_bytes`: how much of the latest
        bodies is kept, so that no conversation is read from its beginning at each turn."""
        self._readings = {dialect: Reading(dialect, body_fields) for dialect in (*Dialect, None)}
        self._derive = derive
        self._stems = Stems(keep_bytes)

    def read(self, path: str, body: bytes, tenant: TenantId, session: SessionKey | None = None) -> Read:
        """What `body` says. Raises `Refused` for what is not a JSON object in UTF-8, is nested too deep,
        has a `model`, `stream` or `messages` of the wrong type, a name that is too long, or too many values.

        Of a path without a dialect, only the members that all bodies have in common are read. `session`: one
        of the tenant's, as the head names it. Its bodies are read from where the last one ended; what is read
        is the same.
        """
        dialect = dialect_of(path)
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
            opened = check_shape(body)
            usual = reading.decode_usual(body)
            head = usual if usual is not None else reading.decode(body)
            model = head.model or ""
            plain = usual is not None or reading.is_plain(head)
            chain, outline, care = reading.chain(head, tenant, model, plain=plain)
        except UnicodeDecodeError as error:
            raise refused(f"is not UTF-8: byte {error.start} is wrong") from error
        except msgspec.ValidationError as error:
            raise refused(f"is not as expected: {error}") from error
        except msgspec.DecodeError as error:
            raise refused(f"is not JSON: {_what(error, body)}") from error
        except RecursionError as error:
            raise refused("is nested too deep") from error
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
            self._keep(body, head, read, care, opened, path, tenant, session)
        return read

    def _keep(
        self,
        body: bytes,
        head: Head,
        read: Read,
        care: int,
        opened: int | None,
        path: str,
        tenant: TenantId,
        session: SessionKey,
    ) -> None:
        """Keep a body that was read, if it is plain where its messages begin and end."""
        messages = head.messages
        span = end_of_messages(body, messages) if not isinstance(messages, UnsetType) else None
        if span is not None and is_all(body, *span):
            mark = Mark(span[1], braces(body) if opened is None else opened, _note(read.chain, care))
            self._stems.keep(session, Stem(body, [mark], _Made(path, tenant, read)))

    def _go_on(
        self,
        reading: Reading,
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


def _usage_options(options: Raw | UnsetType) -> tuple[bool, bool]:
    """Whether there are stream options, and whether they are to be left alone: because they ask for usage,
    or because they are no options."""
    if isinstance(options, UnsetType):
        return False, False
    sent = bytes(options)
    if sent == b"null":
        return True, False
    try:
        asks = raw(OBJECT.decode(sent).get("include_usage", UNSET))
    except msgspec.DecodeError:
        return True, True
    return True, asks not in (b"", b"false")


def _response_id(value: Raw | UnsetType) -> str | None:
    """The id of a stored response. Raises `Refused` for one that no replica can have made."""
    response_id = text(value)
    if response_id is not None and len(response_id) > MAX_RESPONSE_ID:
        raise refused(f"has a previous_response_id of more than {MAX_RESPONSE_ID} bytes")
    return response_id


def _what(error: msgspec.DecodeError, body: bytes) -> str:
    if body.rstrip().endswith(b"}") and "truncated" in str(error):
        # The decoder's word for an escaped surrogate without its other half; engines cannot encode it.
        return f"{error}, or a string holds half of a surrogate pair"
    return str(error)
