"""Heads that differ from their connection's last one in a few values only, as those of most clients do."""

from typing import Final

from router.dataplane import header
from router.dataplane.head import (
    FEW_DIGITS,
    Head,
    add_traceparent,
    add_tracestate,
    is_plain_id,
    is_plain_value,
)
from router.dataplane.header import Line

_CHANGING: Final = (header.LENGTH, header.SESSION, header.REQUEST_ID, header.TRACEPARENT, header.TRACESTATE)
"""Headers that are another each time on one connection, and do not go on as they are."""

_MAX_VALUE: Final = 128
"""Bytes of a value that changes."""

_END: Final = b"\r\n\r\n"


class LastHead:
    """What a connection's heads have in common, as far as its last ones tell: a client writes the same lines
    in the same order, and only the values of some are others each time."""

    __slots__ = ("changing", "common", "fixed", "forward", "reader")

    def __init__(self) -> None:
        self.reader: object | None = None
        """Whose reading it is; of another's it says nothing."""
        self.fixed: list[bytes] = []
        """The bytes before, between and behind the values that change; none where there is no pattern yet."""
        self.changing: list[Line] = []
        """The lines that these values are of."""
        self.common: Head | None = None
        """What all the other lines say."""
        self.forward = b""
        """Those that go on."""

    def learn(self, head: Head, lines: list[bytes], meant: list[Line]) -> None:
        """Make a head that was recognised the pattern for those that follow."""
        fixed: list[bytes] = []
        changing: list[Line] = []
        same = [lines[0]]
        for sent, line in zip(lines[1:], meant, strict=True):
            if line.kind in _CHANGING:
                fixed.append(b"\r\n".join(same) + b"\r\n" + sent[: len(sent) - len(line.value)])
                changing.append(line)
                same = [b""]
            else:
                same.append(sent)
        fixed.append(b"\r\n".join(same) + _END)
        self.fixed, self.changing, self.common = fixed, changing, head
        self.forward = b"".join(head.forward)

    def again(self, data: bytes) -> Head | None:
        """The head that `data` begins with, where it differs from the connection's last ones in nothing but
        the values that change, and these are as plain as they have to be."""
        common, fixed, changing = self.common, self.fixed, self.changing
        before = fixed[0]
        if common is None or not data.startswith(before):
            return None
        head = Head(common.method, common.target, common.path, common.version)
        at = len(before)
        for number in range(len(changing)):
            line, behind = changing[number], fixed[number + 1]
            # Most are as long as the one that was learned. One that goes on behind a line's end is not plain.
            size = len(line.value)
            end = at + size
            if size > _MAX_VALUE or data[end : end + len(behind)] != behind:
                end = data.find(b"\r\n", at, at + _MAX_VALUE + 2)
                if end < 0 or data[end : end + len(behind)] != behind:
                    return None
            value, kind = data[at:end], line.kind
            at = end + len(behind)
            if kind == header.LENGTH:
                if not value.isdigit() or len(value) > FEW_DIGITS:
                    return None
                head.length = int(value)
                head.has_body = head.length > 0
            elif not is_plain_value(value):
                return None
            elif kind == header.SESSION:
                head.sessions += ((line.name, value),)
            elif kind == header.REQUEST_ID:
                head.request_id = value if is_plain_id(value) else None
            elif kind == header.TRACEPARENT:
                add_traceparent(head, value)
            else:
                add_tracestate(head, value)
        head.size = at
        head.content_type = common.content_type
        head.key = common.key
        head.tenant = common.tenant
        head.patience_s = common.patience_s
        head.priority = common.priority
        if self.forward:
            head.forward = [self.forward]
        return head
