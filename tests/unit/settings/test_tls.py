"""Contexts from files: what they offer, and what is said of files that are no good."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from support.certificates import Authority, put

from router.settings.tls import PairFiles, TlsError, client_context, server_context, server_tls


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> ssl.SSLObject:
    """The client's side after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    other = client.wrap_bio(to_client, to_server, server_hostname=host)
    pending = {one, other}
    while pending:
        for side in (other, one):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.discard(side)
    return other


def test_a_pair_is_served_to_those_who_trust_it(authority):
    found = handshake(authority.server().context, authority.client())
    assert found.version() == "TLSv1.3"


def test_http_1_1_alone_is_offered_on_both_sides(authority):
    either = authority.client()
    either.set_alpn_protocols(["h2", "http/1.1"])
    assert handshake(authority.server().context, either).selected_alpn_protocol() == "http/1.1"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.files().load_into(server)
    server.set_alpn_protocols(["h2", "http/1.1"])
    assert handshake(server, authority.client()).selected_alpn_protocol() == "http/1.1"


def test_nothing_older_than_tls_1_2_is_spoken(authority):
    assert authority.client().minimum_version is ssl.TLSVersion.TLSv1_2
    server = authority.server().context
    assert server.minimum_version is ssl.TLSVersion.TLSv1_2
    old = authority.client()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(server, old)


def test_another_authority_and_another_name_are_refused_unless_nothing_is_checked(authority, tmp_path):
    server = authority.server().context
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, Authority(tmp_path).client())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(None, verify=True))
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(server, authority.client(), "10.0.0.1")
    assert handshake(server, client_context(None, verify=False), "10.0.0.1").version()


def locked(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


GARBLED = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----\n"


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("crt", lambda path, ca: path.unlink(), "cannot read '{crt}': No such file or directory"),
        ("key", lambda path, ca: path.unlink(), "cannot read '{key}': No such file or directory"),
        ("crt", lambda path, ca: path.write_text("x"), "'{crt}' holds no PEM certificate"),
        ("key", lambda path, ca: path.write_text(""), "'{key}' holds no PEM private key"),
        (
            "crt",
            lambda path, ca: path.write_text(GARBLED.format("CERTIFICATE")),
            "'{crt}' or '{key}' is damaged",
        ),
        (
            "key",
            lambda path, ca: path.write_bytes(ca.issue().private_key_pem.bytes()),
            "the key '{key}' is not the key of the certificate '{crt}'",
        ),
        (
            "key",
            lambda path, ca: path.write_bytes(ca.issue(rsa=True).private_key_pem.bytes()),
            "the key '{key}' is not the key of the certificate '{crt}'",
        ),
        (
            "key",
            lambda path, ca: path.write_bytes(locked(path.read_bytes())),
            "the key '{key}' is locked with a passphrase; give one without",
        ),
    ],
)
def test_what_is_wrong_with_a_pair_is_said(authority, file, change, said):
    files = authority.files("wrong")
    change({"crt": files.cert, "key": files.key}[file], authority)
    with pytest.raises(TlsError) as caught:
        server_tls(files)
    assert str(caught.value) == said.format(crt=files.cert, key=files.key)


@pytest.mark.parametrize("content", ["", "x", GARBLED.format("CERTIFICATE")])
def test_what_is_wrong_with_an_authority_is_said(tmp_path, content):
    path = tmp_path / "ca.pem"
    path.write_text(content)
    with pytest.raises(TlsError) as caught:
        client_context(path, verify=True)
    assert str(caught.value) == f"'{path}' holds no PEM certificate that can be used"
    path.unlink()
    with pytest.raises(TlsError) as caught:
        client_context(path, verify=True)
    assert str(caught.value) == f"cannot read '{path}': No such file or directory"


def test_an_authority_file_may_have_comments_in_any_language(authority, tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text("# Prüfstelle\n" + authority.path.read_text(), "utf-8")
    assert handshake(authority.server().context, client_context(path, verify=True)).version()


def test_a_pair_loaded_into_a_live_context_serves_what_follows(authority):
    tls = authority.server()
    trusting = authority.client()
    before = handshake(tls.context, trusting).getpeercert(binary_form=True)
    put(authority.issue(), tls.files)
    assert handshake(tls.context, trusting).getpeercert(binary_form=True) == before
    tls.files.load_into(tls.context)
    assert handshake(tls.context, trusting).getpeercert(binary_form=True) != before


def test_stamps_tell_replaced_files_and_missing_ones(authority, tmp_path):
    files = authority.files("stamped")
    first = files.stamps()
    assert files.stamps() == first
    put(authority.issue(), files)
    assert all(new != old for new, old in zip(files.stamps(), first, strict=True))
    # As Kubernetes does it: the names stay, and a link above them leads elsewhere.
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        linked = PairFiles(tmp_path / f"v{number}" / "c", tmp_path / f"v{number}" / "k")
        put(authority.issue(), linked)
    link = tmp_path / "now"
    link.symlink_to("v1")
    through = PairFiles(Path(link / "c"), Path(link / "k"))
    before = through.stamps()
    link.unlink()
    link.symlink_to("v2")
    assert through.stamps() != before
    link.unlink()
    assert through.stamps() == (None, None)


def test_a_context_without_a_pair_refuses_every_client(authority):
    with pytest.raises(ssl.SSLError):
        handshake(server_context(), authority.client())
