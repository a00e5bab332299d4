"""A prompt as a chain of hashes: what the model will see, not what the JSON happened to be.

The bytes that are hashed are called a payload. JSON strings go into it as they were sent, quotes and
escapes included, so no text can contain a delimiter, and what stands between two JSON values is no JSON.
Equal payloads mean equal prompts; the reverse need not hold (a client repeats itself, so key order and
escapes are left alone), save for what clients do change from turn to turn: `cache_control` marks come and
go, and a text is sent now as a string, now as a single text block.

A payload longer than `CHUNK` makes several segments. Where it is cut depends on nothing but the position
in the payload, so a text that grows at its end keeps the segments it had.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from router.core.hashing import hash64
from router.core.request import Chain
from router.dataplane.schemas import Outer
from router.dataplane.splice import Edit, edited, members, without

CHUNK: Final = 4096
"""Bytes of payload in a segment at most: about a thousand tokens, a few dozen KV blocks."""

IMAGE_BYTES: Final = 4096
"""Prompt bytes that an image counts for: about 1000 tokens at 4 bytes. Qwen-VL makes 1369 of a megapixel,
LLaVA 576 of any image; base64 would say 300,000."""
AUDIO_BYTES: Final = 3072
"""The same for a sound: half a minute at the 25 tokens a second of Whisper-style encoders."""
VIDEO_BYTES: Final = 16384
"""The same for a video: a few dozen frames."""

BILLING: Final = b'"x-anthropic-billing-header'
"""How a text block begins that holds a nonce of one request. vLLM leaves such blocks out of the system
prompt, so they are left out here."""

_MARK: Final = "cache_control"
_MARK_BYTES: Final = b"cache_control"
_DIGITS: Final = frozenset((b"-", *(b"%d" % digit for digit in range(10))))
_BLANKS: Final = 64
"""Bytes that are looked through for the beginning of the first element."""
CARE: Final = 4000
"""Objects of one request that are looked into for what does not go into a payload as sent, at some 20 µs
each. Whatever has more is no conversation of an agent, and is hashed as it was sent."""
_ELEMENTS_MOST: Final = 20_000
"""Prompts of one request that are told apart. A list of more is a single payload."""
_COMMAS_MOST: Final = 1_000_000
"""The same before it is known how many there are: texts may have commas."""
_join: Final = b"".join
_hash64: Final = hash64
"""Found at once: what another module defines is looked up by its name."""
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_QUOTE: Final = ord('"')
_BRACKET: Final = ord("]")

_TEXTS: Final = frozenset(("text", "input_text", "output_text"))
# vLLM also takes a part without a type that has one of these as its key.
_MEDIA: Final = {
    "image": IMAGE_BYTES,
    "image_url": IMAGE_BYTES,
    "input_image": IMAGE_BYTES,
    "image_embeds": IMAGE_BYTES,
    "audio": AUDIO_BYTES,
    "audio_url": AUDIO_BYTES,
    "input_audio": AUDIO_BYTES,
    "audio_embeds": AUDIO_BYTES,
    "video": VIDEO_BYTES,
    "video_url": VIDEO_BYTES,
}

_BLOCKS: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_KIND: Final = msgspec.json.Decoder(str)
_ELEMENTS: Final = msgspec.json.Decoder(list[Raw])

Message = dict[str, Raw]
"""One message, item or block: member → value as sent."""


_OUTER: Final = msgspec.json.Decoder(list[Outer])


class Segments:
    """A chain in the making. Each `add_*` puts one payload at its end."""

    __slots__ = ("billing", "care", "ends", "hashes", "messages", "system")

    def __init__(self, root: int, size: int = 0) -> None:
        """`root` is a hash of what all of the prompt depends on; `size` is the prompt bytes in that."""
        self.hashes = [root]
        self.ends = [size]
        self.messages: Sequence[Message] = ()
        """What the chain ends with, where it ends with messages."""
        self.billing = False
        """Whether nonces were left out of them."""
        self.system = 0
        """Segments before the first user message; 0 where there is none."""
        self.care = CARE
        """Objects that may yet be looked into."""

    @classmethod
    def going_on(cls, chain: Chain, count: int, care: int) -> "Segments":
        """What goes on from the first `count` segments of a chain. `care`: what was left of it with these."""
        made = cls(0)
        made.hashes, made.ends = list(chain.hashes[:count]), list(chain.ends[:count])
        made.system, made.care = chain.system, care
        return made

    def add(self, payload: bytes) -> None:
        """One payload, in as many segments as it takes."""
        hashes, ends = self.hashes, self.ends
        last, end = hashes[-1], ends[-1]
        hashes.append(_hash64(payload[:CHUNK], last))
        ends.append(end + min(CHUNK, len(payload)))
        for at in range(CHUNK, len(payload), CHUNK):
            # The seed differs from that of a new payload, so one long text never equals two short ones.
            hashes.append(_hash64(payload[at : at + CHUNK], (hashes[-1] + 1) & _MASK))
            ends.append(end + min(at + CHUNK, len(payload)))

    def add_tools(self, tools: bytes) -> None:
        """Tool definitions, a JSON array as sent. None at all make no segment."""
        if tools not in (b"null", b"[]"):
            self.add(b"t" + _without_marks(tools))

    def add_system(self, system: bytes) -> None:
        """A system prompt that is no message: a string, or a list of blocks, less those of `BILLING`."""
        if payload := _content(system, billing=not system.startswith(b'"')):
            self.add(b"s" + payload)

    def add_messages(self, messages: Sequence[Message], *, billing: bool = False, opening: int = 0) -> int:
        """Messages in order; the answer is how many segments make the opening, unless it is known.

        The opening ends with the last segment of the first user message, all chunks of it included, and of
        the first message where none is the user's. `billing`: leave per-request nonces in system messages
        out (`BILLING`).
        """
        self.messages, self.billing = messages, billing
        hashes, ends = self.hashes, self.ends
        # As an object, which it is: a number is looked at each time for whether it is small.
        last: Any = hashes[-1]
        end = ends[-1]
        first = 0
        for message in messages:
            # Most messages are a role and a content, and need no more than these two side by side.
            payload = b""
            if len(message) == 2:
                try:
                    payload = _join((message["role"], message["content"]))
                except KeyError:
                    pass
                else:
                    kind = payload[-1]  # of the content: a string, a list, or something else
                    if (kind != _QUOTE and (kind != _BRACKET or _needs_care(message["content"]))) or (
                        billing and payload.startswith(b'"system"')
                    ):
                        payload = b""
            if not payload:
                self.care -= 1 + bytes(message.get("content", b"")).count(b"{")
                careful = self.care >= 0
                payload = message_payload(message, billing=billing) if careful else _as_sent(message)
            size = len(payload)
            if size <= CHUNK:
                last = _hash64(payload, last)
                end += size
                hashes.append(last)
                ends.append(end)
            else:
                self.add(payload)
                last, end = hashes[-1], ends[-1]
            if not opening:
                if payload.startswith(b'"user"'):
                    opening = len(hashes)
                    self.system = opening - -(-size // CHUNK)
                elif not first:
                    first = len(hashes)
        return opening or first

    def add_prompt(self, prompt: bytes) -> None:
        """A prompt that is no conversation: a string, token ids, or a list of either."""
        if prompt.startswith(b"[") and prompt[1:_BLANKS].lstrip()[:1] in _DIGITS:
            # A list that begins with a token id is taken for nothing but ids, of which there may be millions.
            self._add_token_ids(prompt)
        elif prompt.startswith(b"[") and prompt.count(b",") <= _COMMAS_MOST:
            elements = _ELEMENTS.decode(prompt)
            if len(elements) > _ELEMENTS_MOST:
                self.add(prompt)
                return
            for element in map(bytes, elements):
                if element.startswith(b"["):
                    self._add_token_ids(element)
                elif element[:1] in b'"{':
                    self.add(element)
                else:
                    self._add_token_ids(prompt)
                    return
        elif prompt != b"null":
            self.add(prompt)

    def _add_token_ids(self, ids: bytes) -> None:
        """Token ids count 4 bytes each, what a token is as text, however many digits they have."""
        first = len(self.hashes)
        before = end = self.ends[-1]
        self.add(b"#" + ids[1:-1])
        for i in range(first, len(self.hashes)):
            at = (i - first) * CHUNK
            end += 4 * ids.count(b",", at, at + CHUNK)
            self.ends[i] = end
        if end > before or len(ids) > 2:
            self.ends[-1] += 4


def message_payload(message: Message, *, billing: bool = False) -> bytes:
    """The payload of a message of any shape: role, content, and whatever else it has, as sent."""
    role: bytes | Raw = message.get("role", b"-")
    content = message.get("content")
    parts: list[bytes | Raw] = [role]
    if content is not None:
        parts.append(_content(bytes(content), billing=billing and bytes(role) == b'"system"'))
    for name, value in message.items():
        if name == "output":
            parts += (_name(name), _content(bytes(value)))
        elif name not in ("role", "content", _MARK):
            parts += (_name(name), value)
    return b"".join(parts)


def _as_sent(message: Message) -> bytes:
    """The payload of a message that is not looked into: its role first, as in any other."""
    rest = (part for name, value in message.items() if name != "role" for part in (_name(name), value))
    return b"".join((message.get("role", b"-"), *rest))


def _content(content: bytes, *, billing: bool = False, nested: bool = False) -> bytes:
    """The payload of a string or of a list of blocks; empty for null and for a nonce.

    A list of one text equals the text. Other lists stay as sent, but for marks, nonces and media. `nested`:
    the content of a block. Its blocks are not looked into any further, so depth costs nothing.
    """
    if content.startswith(b'"'):
        return b"" if billing and content.startswith(BILLING) else content
    if content == b"null":
        return b""
    if not content.startswith(b"["):
        return content
    if billing or nested or _needs_care(content):
        return _careful(content, billing=billing, nested=nested)
    return content


def _needs_care(content: bytes | Raw) -> bool:
    """Whether a list of blocks holds what does not go into a payload as it was sent."""
    try:
        blocks = _OUTER.decode(content)
    except msgspec.ValidationError:
        return True
    for block in blocks:
        kind = block.type
        if block.cache_control is not UNSET or kind is None or kind in _MEDIA:
            return True
        if type(block.content) is list:
            for inner in block.content:
                if inner.cache_control is not UNSET or inner.type is None or inner.type in _MEDIA:
                    return True
    return len(blocks) == 1 and blocks[0].type in _TEXTS


def _careful(content: bytes, *, billing: bool, nested: bool) -> bytes:
    """`_content` of a list, block by block."""
    try:
        blocks = _BLOCKS.decode(content)
    except msgspec.ValidationError:
        return content
    spans = _spans(content)
    edits: list[Edit] = []
    texts: list[bytes] = []
    kept = 0
    for i, (block, (start, end)) in enumerate(zip(blocks, spans, strict=True)):
        text = _text_of(block)
        if billing and text.startswith(BILLING):
            edits.append((start, spans[i + 1][0] if i + 1 < len(spans) else end, b""))
            continue
        kept += 1
        if text:
            texts.append(text)
        edits.append((start, end, _block(content[start:end], block, nested=nested)))
    if kept == len(texts) == 1 and not nested:
        return texts[0]
    return b"".join(edited(content, edits)) if kept or not blocks else b""


def _text_of(block: Message) -> bytes:
    """The text of a block that is nothing but a text; empty for any other."""
    if len(block) == 2 + (_MARK in block) and "text" in block and _kind(block) in _TEXTS:
        text = bytes(block["text"])
        if text.startswith(b'"'):
            return text
    return b""


def _kind(block: Message) -> str:
    kind = block.get("type")
    return _KIND.decode(kind) if kind is not None else ""


def _block(sent: bytes, block: Message, *, nested: bool) -> bytes:
    """The payload of one block, of which `sent` are the bytes."""
    payload = without(sent, (_MARK,)) if _MARK in block else sent
    kind = _kind(block)
    size = _MEDIA.get(kind, 0) if kind else next((size for key, size in _MEDIA.items() if key in block), 0)
    if size:
        # The digest stands for the data, padded to what the data's tokens would be as text.
        return (b"<%016x>" % hash64(payload)).ljust(size, b"\0")
    if kind == "tool_result" and not nested and "content" in block:
        return b"".join(
            edited(
                payload,
                [
                    (one.value, one.end, _content(payload[one.value : one.end], nested=True))
                    for one in members(payload)
                    if one.key == "content" and payload.startswith(b"[", one.value)
                ],
            )
        )
    return payload


def _name(key: str) -> bytes:
    """A member's name in a payload. The length says where the name ends, whatever it is made of."""
    encoded = key.encode()
    return b",%d:%b" % (len(encoded), encoded)


def _spans(array: bytes) -> list[tuple[int, int]]:
    """Where the elements of an array begin and end."""
    spans: list[tuple[int, int]] = []
    at = 1
    for element in map(bytes, _ELEMENTS.decode(array)):
        # Nothing but a comma and spaces lies between two elements, so the first match is the element.
        start = array.index(element, at)
        at = start + len(element)
        spans.append((start, at))
    return spans


def _without_marks(array: bytes) -> bytes:
    """An array of objects as sent, less the marks that are members of these objects."""
    if not 0 < array.count(_MARK_BYTES) <= CARE or not array.startswith(b"["):
        return array
    edits: list[Edit] = []
    for start, end in _spans(array):
        element = array[start:end]
        if element.startswith(b"{") and _MARK_BYTES in element:
            edits.append((start, end, without(element, (_MARK,))))
    return b"".join(edited(array, edits))
