import pytest

from router.controlplane.guard import Caller, Guard, is_loopback

TOKEN = "s3cret-token"
LOCAL = Guard("127.0.0.1", token=TOKEN, allowed_hosts=["homing.internal"], read_only=["/api/explain"])
PUBLIC = Guard("0.0.0.0", token=TOKEN)


def caller(
    method: str = "GET",
    path: str = "/api/replicas",
    *,
    host: str | None = "127.0.0.1:9090",
    origin: str | None = None,
    authorization: str | None = None,
    token: str | None = None,
    local_address: str | None = "127.0.0.1",
) -> Caller:
    return Caller(method, path, host, origin, authorization, token, local_address)


def code(guard: Guard, who: Caller) -> str | None:
    rejection = guard.check(who)
    return rejection.code if rejection is not None else None


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:9090", "localhost", "localhost:1", "LOCALHOST:9090", "[::1]:9090", "homing.internal:9090"],
)
def test_a_host_that_means_this_machine_is_let_in(host: str) -> None:
    assert code(LOCAL, caller(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        "evil.example:9090",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil@localhost",
        "localhost/x",
        "localhost:x",
        "localhost:99999",
        "[::1",
        "10.0.0.9",
        "localhost#",
        "localhost?",
    ],
)
def test_a_foreign_or_malformed_host_is_refused(host: str | None) -> None:
    assert code(LOCAL, caller(host=host)) == "foreign_host"


def test_a_name_that_is_not_listed_is_foreign_token_or_not() -> None:
    for guard in (LOCAL, PUBLIC):
        for method in ("GET", "DELETE"):
            for token in (TOKEN, "guessed"):
                assert code(guard, caller(method, host="homing.example", token=token)) == "foreign_host"


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_liveness_and_readiness_are_told_by_any_name(path: str) -> None:
    for guard in (LOCAL, PUBLIC):
        assert code(guard, caller(path=path, host="homing.example:9090")) is None
        assert code(guard, caller("POST", path, host="homing.example:9090")) == "foreign_host"
        assert code(guard, caller(path=path, host="a.example", origin="http://b.example")) == "foreign_origin"


def test_the_address_that_a_connection_reached_is_a_name_of_a_wildcard_listener() -> None:
    assert code(PUBLIC, caller(host="10.0.0.5:9090", local_address="10.0.0.5")) == "token_required"
    assert code(PUBLIC, caller(host="10.0.0.6:9090", local_address="10.0.0.5")) == "foreign_host"


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:9090", "127.0.0.1:9090"),
        ("http://localhost:9090", "localhost:9090"),
        ("http://localhost", "localhost"),
        ("http://localhost", "localhost:80"),
        ("http://[::1]:9090", "[::1]:9090"),
        ("https://homing.internal", "homing.internal"),
    ],
)
def test_a_page_of_our_own_is_let_in(origin: str, host: str) -> None:
    assert code(LOCAL, caller("POST", origin=origin, host=host, token=TOKEN)) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:9090",
        "http://127.0.0.1:8080",
        "http://127.0.0.1",
        "null",
        "",
        "file://",
        "http://127.0.0.1:9090/",
        "http://evil@127.0.0.1:9090",
        "ftp://127.0.0.1:9090",
        "http://127.0.0.1:x",
        "http://[::1",
        "chrome-extension://127.0.0.1:9090",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_of_another_origin_is_refused_even_with_the_token(method: str, origin: str) -> None:
    assert code(LOCAL, caller(method, origin=origin, token=TOKEN)) == "foreign_origin"


def test_reads_of_a_loopback_listener_need_no_token() -> None:
    assert code(LOCAL, caller()) is None
    assert code(LOCAL, caller("HEAD")) is None
    assert code(LOCAL, caller("POST", "/api/explain")) is None


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_writes_need_the_token_on_loopback_too(method: str) -> None:
    assert code(LOCAL, caller(method)) == "token_required"
    assert code(LOCAL, caller(method, token=TOKEN)) is None


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
def test_the_token_may_come_as_a_bearer(authorization: str) -> None:
    assert code(LOCAL, caller("POST", authorization=authorization)) is None


def test_a_right_token_counts_beside_a_wrong_authorization() -> None:
    assert code(LOCAL, caller("POST", authorization="Basic x", token=TOKEN)) is None


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "ü", "\udcff"])
def test_a_wrong_token_is_refused(wrong: str) -> None:
    assert code(LOCAL, caller("POST", token=wrong)) == "token_required"
    assert code(LOCAL, caller("POST", authorization=f"Bearer {wrong}")) == "token_required"
    assert code(LOCAL, caller("POST", authorization=f"Basic {TOKEN}")) == "token_required"


def test_a_listener_that_is_not_loopback_wants_the_token_for_reads() -> None:
    here = {"host": "127.0.0.1:9090"}
    assert code(PUBLIC, caller(**here)) == "token_required"
    assert code(PUBLIC, caller(path="/metrics", **here)) == "token_required"
    assert code(PUBLIC, caller(path="/", **here)) == "token_required"
    assert code(PUBLIC, caller(token=TOKEN, **here)) is None


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_liveness_and_readiness_need_no_token_anywhere(path: str) -> None:
    assert code(PUBLIC, caller(path=path)) is None
    assert code(PUBLIC, caller("POST", path)) == "token_required"


def test_a_path_that_only_looks_open_is_not() -> None:
    assert code(PUBLIC, caller(path="/livez/../api/replicas")) == "token_required"
    assert code(PUBLIC, caller(path="//livez")) == "token_required"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"])
def test_loopback_listeners_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example"])
def test_other_listeners_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_pages_are_read_without_the_token_but_not_from_elsewhere_and_not_written() -> None:
    guard = Guard("0.0.0.0", token=TOKEN, pages=["/", "/ui/app.js"])
    for path in ("/", "/ui/app.js"):
        assert code(guard, caller(path=path)) is None
        assert code(guard, caller("HEAD", path)) is None
        assert code(guard, caller("POST", path)) == "token_required"
        assert code(guard, caller(path=path, host="evil.example")) == "foreign_host"
        assert code(guard, caller(path=path, origin="http://evil.example")) == "foreign_origin"
    for path in ("/api/overview", "/ui/", "/ui/other.js", "/ui/app.js/"):
        assert code(guard, caller(path=path)) == "token_required"
