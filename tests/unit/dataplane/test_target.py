"""A request's target has one meaning or is refused."""

import pytest

from router.base.errors import Refused
from router.dataplane.problems import HttpRefused
from router.dataplane.target import MAX_TARGET, plain_target


@pytest.mark.parametrize(
    ("sent", "target", "path"),
    [
        (b"/v1/chat/completions", b"/v1/chat/completions", "/v1/chat/completions"),
        (b"/v1/responses?stream=1", b"/v1/responses?stream=1", "/v1/responses"),
        (b"/v1/responses/resp.1", b"/v1/responses/resp.1", "/v1/responses/resp.1"),
        (b"/tokenize?a=%2F..", b"/tokenize?a=%2F..", "/tokenize"),
        (b"/v1/models/org%2Fname", b"/v1/models/org%2Fname", "/v1/models/org/name"),
        (b"http://host/v1/models", b"/v1/models", "/v1/models"),
        (b"HTTPS://host:8000", b"/", "/"),
        (b"http://host?a=1", b"/?a=1", "/"),
    ],
)
def test_what_is_plain_passes(sent, target, path):
    assert plain_target(sent) == (target, path)


@pytest.mark.parametrize(
    "sent",
    [
        b"*",
        b"v1/models",
        b"ftp://host/v1/models",
        b"http:///v1/models",
        b"http://me@host/v1/models",
        b"/v1/%63hat/completions",
        b"/v1//chat/completions",
        b"/v1/../health",
        b"/v1/./models",
        b"/v1\\models",
        b"/v1/models#top",
        b"/v1/models/%2e%2e/x",
        b"/v1/models/a%252Fb",
        "/v1/mod\u00e9ls".encode(),
    ],
)
def test_what_a_server_could_read_otherwise_is_refused(sent):
    with pytest.raises(Refused):
        plain_target(sent)


def test_a_target_is_bounded():
    assert plain_target(b"/" + b"a" * (MAX_TARGET - 1))[1] == "/" + "a" * (MAX_TARGET - 1)
    with pytest.raises(HttpRefused) as refused:
        plain_target(b"/" + b"a" * MAX_TARGET)
    assert refused.value.status == 414
