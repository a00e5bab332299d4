"""Words for errors: the system's, not the event loop's; and the limit of open files."""

import asyncio
import errno
import resource
import socket
import ssl
import sys

import pytest
import uvloop

from router.base.system import allow_open_files, is_own_shortage, open_files, system_words


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_connection_reads_the_same_on_both_loops(loop_factory: object) -> None:
    async def connect() -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            with pytest.raises(OSError, match=r".*") as caught:
                await asyncio.get_running_loop().create_connection(asyncio.Protocol, *free.getsockname())
        return system_words(caught.value)

    with asyncio.Runner(loop_factory=loop_factory) as runner:  # type: ignore[arg-type]
        assert runner.run(connect()) == "Connection refused"


def test_asyncios_own_text_is_left_out() -> None:
    error = OSError(errno.EADDRINUSE, "error while attempting to bind on address ('::1', 1): address in use")
    assert system_words(error) == "Address already in use"


@pytest.mark.skipif(sys.platform != "linux", reason="the words are the platform's")
def test_a_name_that_cannot_be_resolved_keeps_the_resolvers_words() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert system_words(error) == "Name or service not known"


def test_what_the_system_has_no_words_for() -> None:
    assert system_words(TimeoutError()) == "timed out"
    assert system_words(OverflowError("port must be 0-65535")) == "port must be 0-65535"


def test_tls_errors_have_numbers_of_their_own() -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert system_words(error) == "TLS failed: wrong version number"
    assert system_words(ssl.SSLError(1, "x")) == "TLS failed"
    refused = ssl.SSLCertVerificationError(1, "x")
    refused.verify_message = "self-signed certificate"
    assert system_words(refused) == "its certificate is not accepted: self-signed certificate"


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (OSError(errno.EMFILE, "x"), True),
        (OSError(errno.EADDRNOTAVAIL, "x"), True),
        (socket.gaierror(socket.EAI_AGAIN, "x"), True),
        (socket.gaierror(socket.EAI_NONAME, "x"), False),
        (OSError(errno.ECONNREFUSED, "x"), False),
        (OSError("Multiple exceptions: [Errno 111] x, [Errno 99] x"), False),
        (TimeoutError(), False),
        (ssl.SSLError(errno.ENOMEM, "a number of OpenSSL's"), False),
    ],
)
def test_what_a_connection_lacked_on_this_side_is_told_from_what_the_other_did(
    error: OSError, ours: bool
) -> None:
    assert is_own_shortage(error) is ours


@pytest.fixture
def soft_limit():
    """Sets the soft limit, and sets it back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_of_open_files_is_raised_as_far_as_the_system_lets_it(soft_limit) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft_limit(min(soft, 256))
    assert open_files() == min(soft, 256)
    allow_open_files()
    most = hard if hard != resource.RLIM_INFINITY else 1 << 20
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(most, 1 << 20), hard)


def test_a_system_that_allows_less_than_it_says_is_left_as_it_is(soft_limit, monkeypatch) -> None:
    soft_limit(256)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def refuse(_what: int, _limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    with monkeypatch.context() as patched:
        patched.setattr(resource, "setrlimit", refuse)
        allow_open_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, hard)
