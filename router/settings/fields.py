"""The kinds of value that config and policy files are made of: durations, sizes, addresses, names.

Each is an annotated type: pydantic checks it, the JSON schema describes it, and its error says what a
right value looks like. Knows nothing of which key holds what.
"""

import ipaddress
import re
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from router.base.units import format_duration, format_size, parse_duration, parse_size


class Model(BaseModel):
    """Base of every mapping in a file: unknown keys refused, never changed after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Address(NamedTuple):
    """A host and a port, `127.0.0.1:8080` or `[::1]:8080`."""

    host: str
    """An IP address or a name, without brackets."""
    port: int
    """0 where the system is to choose."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than `localhost` may be anything: no."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/@?#\s]+)):([0-9]{1,6})")


def parse_address(text: object) -> Address:
    """`host:port` → `Address`. Raises `ValueError` with a valid example."""
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"'{text}' is not host:port; write 127.0.0.1:8080 or [::1]:8080")
    host, port = match[1] or match[2], int(match[3])
    if port > 65535:
        raise ValueError(f"port {port} is out of range: 0 to 65535")
    if not _is_host(host, bracketed=match[1] is not None):
        raise ValueError(f"'{host}' is neither an IP address nor a host name")
    return Address(host, port)


def _host_name(text: str) -> str:
    if not _is_host(text, bracketed=":" in text):
        raise ValueError(f"'{text}' is neither a host name nor an IP address; write homing.internal, no port")
    return text.lower()


def parse_remote_address(text: object) -> Address:
    """Like `parse_address`, for something to connect to: port 0 is refused."""
    address = parse_address(text)
    if address.port == 0:
        raise ValueError("port 0 cannot be connected to")
    return address


_SCHEMES: Final = {"http": 80, "https": 443}
"""What replicas speak, and the port that is meant where a URL has none."""

_TRACES: Final = "/v1/traces"
"""Where a collector takes traces unless its URL has a path of its own."""


def _split(text: str, example: str, instead: str) -> tuple[SplitResult, str | None, int | None]:
    """A URL's parts, its host and its port. Raises `ValueError`: also for one with a password, with what to
    use `instead`."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"'{text}' is not a URL: {str(error).lower()}; {example}") from None
    if "@" in parts.netloc:
        # Not shown: what stands before the @ may be a password.
        raise ValueError(f"a URL must not carry a user or password; use {instead}")
    return parts, host, port


def parse_replica_url(text: object) -> str:
    """A replica's URL → `http://host:port`, or with `https`. Raises `ValueError` with a valid example."""
    example = "write http://10.0.0.1:8000"
    if not isinstance(text, str) or re.search(r"[\s\x00-\x1f\\]", text):
        raise ValueError(f"'{text}' is not a URL; {example}")
    if "://" not in text:
        raise ValueError(f"'{text}' has no scheme; write http://{text}" if text else f"is empty; {example}")
    parts, host, port = _split(text, example, "api_key_file or api_key_env")
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"'{parts.scheme}' is not a scheme that replicas speak; {example}")
    if host is None or not _is_host(host, bracketed=":" in host):
        raise ValueError(f"'{text}' names no host; {example}")
    port = _SCHEMES[parts.scheme] if port is None else port
    if port == 0:
        raise ValueError("port 0 cannot be connected to")
    base = f"{parts.scheme}://{Address(host, port)}"
    for there, what in (
        (parts.path not in ("", "/"), "path"),
        (parts.query, "query"),
        (parts.fragment, "fragment"),
    ):
        if there:
            raise ValueError(f"'{text}' must not have a {what}: Homing adds the request's own; write {base}")
    return base


def parse_collector_url(text: object) -> str:
    """Where an OpenTelemetry collector takes traces → a URL with a path. Raises `ValueError` with a valid
    example."""
    example = "write http://10.0.0.1:4318"
    if not isinstance(text, str) or re.search(r"[^!-~]|\\", text):
        raise ValueError(f"'{text}' is not a URL; {example}")
    parts, host, port = _split(text, example, "otlp_headers_file")
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"'{text}' is not http:// or https://; {example}")
    if host is None or not _is_host(host, bracketed=":" in host):
        raise ValueError(f"'{text}' names no host; {example}")
    if port == 0:
        raise ValueError("port 0 cannot be connected to")
    if parts.query or parts.fragment:
        raise ValueError(f"'{text}' must not have a query or a fragment; {example}")
    path = parts.path if parts.path not in ("", "/") else _TRACES
    return f"{parts.scheme}://{Address(host, _SCHEMES[parts.scheme] if port is None else port)}{path}"


def parse_events_url(text: object) -> str:
    """Where a replica publishes its KV events → `tcp://host:port`."""
    if not isinstance(text, str) or not text.startswith("tcp://"):
        raise ValueError(f"'{text}' is not where KV events come from; write tcp://10.0.0.1:5561")
    return f"tcp://{parse_remote_address(text.removeprefix('tcp://'))}"


def is_ip(host: str) -> bool:
    """Whether it is an address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str, *, bracketed: bool) -> bool:
    if bracketed or re.fullmatch(r"[0-9.]+", host):
        # Digits and dots only are meant as an address: 10.0.0.999 is no name.
        return is_ip(host)
    return len(host) <= 253 and _HOST.fullmatch(host) is not None


def _header_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", text) is None:
        raise ValueError(f"'{text}' is not a header name; write x-session-id")
    # Header names are compared in lower case and with `-` for `_`.
    return text.lower().replace("_", "-")


def _body_field(text: str) -> str:
    # Two levels: where clients put ids, and as deep as the body's head is read.
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}(?:\.[A-Za-z_][A-Za-z0-9_]{0,63})?", text) is None:
        raise ValueError(f"'{text}' is not a body field; write prompt_cache_key or metadata.session_id")
    return text


def _name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text) is None:
        raise ValueError(
            f"'{text}' is not a name: letters, digits, '.', '_' and '-', at most 64, a letter or digit first"
        )
    return text


def _pattern(text: str) -> str:
    if not text or "*" in text[:-1]:
        raise ValueError(f"'{text}' is not a pattern: an exact value, or a beginning and one * at its end")
    return text


def _path_pattern(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"'{text}' is not a path; write /v1/embeddings or /v1/audio/*")
    return _pattern(text)


def _count_or_auto(value: object) -> int | None:
    if value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"'{value}' is neither auto nor a whole number from 1 up")
    return value


def _duration_or_auto(value: Any) -> float | None:
    return None if value == "auto" else parse_duration(value)


def _signed_duration(value: Any) -> float:
    if isinstance(value, str) and value.startswith("-"):
        return -parse_duration(value[1:])
    return parse_duration(value)


def _shown_signed(seconds: float) -> str:
    return f"-{format_duration(-seconds)}" if seconds < 0 else format_duration(seconds)


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("must be more than 0")
    return value


_DURATION_SCHEMA: Final = {
    "type": "string",
    "pattern": r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$",
    "examples": ["150ms", "30s", "5m", "2h", "1d"],
}
_SIZE_SCHEMA: Final = {
    "type": "string",
    "pattern": r"^[0-9]+(\.[0-9]+)?(B|[KMGT]i?B)$",
    "examples": ["512B", "64KiB", "64MiB", "2GiB"],
}


def _or_auto(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"const": "auto"}, schema]}


def _shown_duration(seconds: float | None) -> str:
    return "auto" if seconds is None else format_duration(seconds)


def _shown_count(count: int | None) -> str | int:
    return "auto" if count is None else count


# Serializers write a value as the file does, so that the defaults in the JSON schema can be copied.

Duration = Annotated[
    float,
    PlainValidator(parse_duration),
    AfterValidator(_positive),
    PlainSerializer(format_duration),
    WithJsonSchema(_DURATION_SCHEMA),
]
"""Seconds, more than 0; written `150ms`."""

DurationOrZero = Annotated[
    float,
    PlainValidator(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema(_DURATION_SCHEMA),
]

DurationOrAuto = Annotated[
    float | None,
    PlainValidator(_duration_or_auto),
    PlainSerializer(_shown_duration),
    WithJsonSchema(_or_auto(_DURATION_SCHEMA)),
]
"""Seconds; `None` = `auto`."""

SignedDuration = Annotated[
    float,
    PlainValidator(_signed_duration),
    PlainSerializer(_shown_signed),
    WithJsonSchema(_DURATION_SCHEMA | {"pattern": r"^-?[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"}),
]
"""Seconds; written `150ms`, `-5m` or `0`."""

Size = Annotated[
    int,
    PlainValidator(parse_size),
    AfterValidator(_positive),
    PlainSerializer(format_size),
    WithJsonSchema(_SIZE_SCHEMA),
]
"""Bytes, more than 0; written `64MiB`."""

CountOrAuto = Annotated[
    int | None,
    PlainValidator(_count_or_auto),
    PlainSerializer(_shown_count),
    WithJsonSchema(_or_auto({"type": "integer", "minimum": 1})),
]
"""A number from 1 up; `None` = `auto`."""

ListenAddress = Annotated[
    Address,
    PlainValidator(parse_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1:8080"]}),
]
RemoteAddress = Annotated[
    Address,
    PlainValidator(parse_remote_address),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["10.0.0.1:7710"]}),
]
ReplicaUrl = Annotated[
    str,
    PlainValidator(parse_replica_url),
    WithJsonSchema({"type": "string", "pattern": "^https?://", "examples": ["http://10.0.0.1:8000"]}),
]
CollectorUrl = Annotated[
    str,
    PlainValidator(parse_collector_url),
    WithJsonSchema({"type": "string", "pattern": "^https?://", "examples": ["http://10.0.0.1:4318"]}),
]
EventsUrl = Annotated[
    str,
    PlainValidator(parse_events_url),
    WithJsonSchema({"type": "string", "pattern": "^tcp://", "examples": ["tcp://10.0.0.1:5561"]}),
]
HostName = Annotated[str, AfterValidator(_host_name)]
"""A name or an address without a port."""
HeaderName = Annotated[str, AfterValidator(_header_name)]
BodyField = Annotated[str, AfterValidator(_body_field)]
Name = Annotated[str, AfterValidator(_name)]
Pattern = Annotated[str, AfterValidator(_pattern)]
PathPattern = Annotated[str, AfterValidator(_path_pattern)]
FilePath = Annotated[str, Field(min_length=1)]
"""As written: relative ones are looked for beside the file that names them, then in the working directory."""
