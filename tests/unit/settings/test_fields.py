"""Addresses, URLs and names: what is taken, in what form, and the words of each refusal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from router.settings.fields import (
    Address,
    BodyField,
    CountOrAuto,
    DurationOrAuto,
    HeaderName,
    HostName,
    Name,
    PathPattern,
    Pattern,
    parse_address,
    parse_collector_url,
    parse_events_url,
    parse_remote_address,
    parse_replica_url,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        ("[::1]:8080", Address("::1", 8080)),
        ("localhost:0", Address("localhost", 0)),
        ("my-host.example:65535", Address("my-host.example", 65535)),
    ],
)
def test_an_address_reads_and_shows_alike(text, address):
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "host", "host:", "host:x", "::1:80", "http://h:1", "a b:1", 8080]
)
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="is not host:port") as caught:
        parse_address(text)
    assert str(caught.value) == f"'{text}' is not host:port; write 127.0.0.1:8080 or [::1]:8080"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h:65536", "port 65536 is out of range: 0 to 65535"),
        ("10.0.0.999:1", "'10.0.0.999' is neither an IP address nor a host name"),
        ("[::g]:1", "'[::g]:1' is not host:port; write 127.0.0.1:8080 or [::1]:8080"),
        ("[1::2::3]:1", "'1::2::3' is neither an IP address nor a host name"),
        ("-h:1", "'-h' is neither an IP address nor a host name"),
    ],
)
def test_an_impossible_address_says_which_part_is(text, expected):
    with pytest.raises(ValueError, match="is") as caught:
        parse_address(text)
    assert str(caught.value) == expected


def test_port_0_is_for_listening_only():
    assert parse_address("h:0").port == 0
    with pytest.raises(ValueError, match=r"^port 0 cannot be connected to$"):
        parse_remote_address("h:0")
    with pytest.raises(ValueError, match=r"^port 0 cannot be connected to$"):
        parse_replica_url("http://h:0")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_only_what_cannot_be_reached_from_elsewhere_is_loopback(host, loopback):
    assert Address(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("http://Replica-0.vllm:8000", "http://replica-0.vllm:8000"),
        ("HTTP://h", "http://h:80"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://h", "https://h:443"),
        ("HTTPS://[::1]:8443/", "https://[::1]:8443"),
    ],
)
def test_a_replica_url_takes_one_form(text, url):
    assert parse_replica_url(text) == url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; write http://10.0.0.1:8000"),
        ("10.0.0.1:8000", "'10.0.0.1:8000' has no scheme; write http://10.0.0.1:8000"),
        ("ftp://h:1", "'ftp' is not a scheme that replicas speak; write http://10.0.0.1:8000"),
        (
            "http://h:1/v1",
            "'http://h:1/v1' must not have a path: Homing adds the request's own; write http://h:1",
        ),
        (
            "http://h:1?x=1",
            "'http://h:1?x=1' must not have a query: Homing adds the request's own; write http://h:1",
        ),
        ("http://:1", "'http://:1' names no host; write http://10.0.0.1:8000"),
        (
            "http://h:99999",
            "'http://h:99999' is not a URL: port out of range 0-65535; write http://10.0.0.1:8000",
        ),
        ("http://[::1", "'http://[::1' is not a URL: invalid ipv6 url; write http://10.0.0.1:8000"),
        ("http://h\n:1", "'http://h\n:1' is not a URL; write http://10.0.0.1:8000"),
        (7, "'7' is not a URL; write http://10.0.0.1:8000"),
    ],
)
def test_what_is_no_replica_url_is_refused_with_an_example(text, expected):
    with pytest.raises(ValueError, match=r"\w") as caught:
        parse_replica_url(text)
    assert str(caught.value) == expected


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(ValueError, match="must not carry a user or password") as caught:
        parse_replica_url("http://me:hunter2@h:1")
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_makes_a_replica_url_that_could_carry_anything_else(text):
    try:
        url = parse_replica_url("http://" + text)
    except ValueError:
        return
    assert parse_replica_url(url) == url
    assert url.isascii()
    assert not set(url.removeprefix("http://")) & set("/?#@ \r\n\t")


def test_kv_events_come_over_tcp():
    assert parse_events_url("tcp://10.0.0.1:5561") == "tcp://10.0.0.1:5561"
    for text in ("10.0.0.1:5561", "ipc://x", 3):
        with pytest.raises(
            ValueError, match=r"is not where KV events come from; write tcp://10\.0\.0\.1:5561$"
        ):
            parse_events_url(text)
    with pytest.raises(ValueError, match="is not host:port"):
        parse_events_url("tcp://*:5561x")


def test_header_names_are_compared_in_one_form():
    assert TypeAdapter(HeaderName).validate_python("X_Session_ID") == "x-session-id"


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (HeaderName, "x-a", ["", "x a", "x:a", "ä"]),
        (HostName, "homing.internal", ["", "a:9090", "http://a", "a b", "[::1]", "a/b", "ä", "*"]),
        (HostName, "fd00::1", ["fd00::1::", "10.0.0.1:1"]),
        (BodyField, "metadata.session_id", ["", "a.b.c", ".a", "a.", "a-b", "1a"]),
        (Name, "r0", ["", "-a", "a b", "a\n", "a" * 65, "ä", "a/b"]),
        (Pattern, "gpt-*", ["", "a*b", "**"]),
        (PathPattern, "/v1/audio/*", ["v1", "", "/v1/*/x"]),
    ],
)
def test_names_and_patterns_are_checked(kind, good, bad):
    check = TypeAdapter(kind)
    assert check.validate_python(good) == good
    for text in bad:
        with pytest.raises(ValidationError):
            check.validate_python(text)


def test_auto_is_none():
    assert TypeAdapter(CountOrAuto).validate_python("auto") is None
    assert TypeAdapter(CountOrAuto).validate_python(3) == 3
    assert TypeAdapter(CountOrAuto).dump_python(None) == "auto"
    assert TypeAdapter(CountOrAuto).dump_python(3) == 3
    assert TypeAdapter(DurationOrAuto).validate_python("auto") is None
    assert TypeAdapter(DurationOrAuto).validate_python("20ms") == 0.02
    assert TypeAdapter(DurationOrAuto).dump_python(None) == "auto"
    assert TypeAdapter(DurationOrAuto).dump_python(0.02) == "20ms"
    for value in (True, 0, "x", 1.5, None):
        with pytest.raises(ValidationError):
            TypeAdapter(CountOrAuto).validate_python(value)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:4318", "http://10.0.0.1:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://otlp.example", "https://otlp.example:443/v1/traces"),
        ("https://otlp.example/tenant-1/v1/traces", "https://otlp.example:443/tenant-1/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_collectors_url_has_a_path(text, url):
    assert parse_collector_url(text) == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (4318, "'4318' is not a URL"),
        ("", "'' is not http:// or https://"),
        ("collector:4318", "'collector:4318' is not http:// or https://"),
        ("grpc://collector:4317", "is not http:// or https://"),
        ("http://", "names no host"),
        ("http://a b", "is not a URL"),
        ("http://ä:1", "is not a URL"),
        ("http://a:99999", "is not a URL: port out of range"),
        ("http://a:0", "port 0 cannot be connected to"),
        ("http://a:1?x=1", "must not have a query or a fragment"),
        ("http://a:1#x", "must not have a query or a fragment"),
        ("http://a_b..c:1", "names no host"),
    ],
)
def test_a_collectors_url_that_is_none_is_refused_with_an_example(text, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_collector_url(text)
    assert "4318" in str(caught.value) or "port 0" in words


def test_a_collectors_password_is_not_shown():
    with pytest.raises(ValueError, match="use otlp_headers_file") as caught:
        parse_collector_url("http://user:hunter2@a:4318")
    assert "hunter2" not in str(caught.value)
