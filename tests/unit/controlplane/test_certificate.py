"""The watch over the certificate: what is loaded when, and what is said of it."""

import logging
import ssl

import pytest
from support.certificates import Authority, put
from support.plane import until

from router.controlplane.certificate import certificate_watch


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def tls(authority):
    return authority.server()


class Look:
    """Looks at the files when it is told, and says what clients are served."""

    def __init__(self, tls, authority):
        self._watch, self._tls, self._authority = certificate_watch(tls), tls, authority

    async def __call__(self) -> bytes:
        await self._watch.saw(self._tls.files.stamps())
        return self.served()

    def served(self) -> bytes:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self._tls.context.wrap_bio(to_server, to_client, server_side=True)
        client = self._authority.client().wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return client.getpeercert(binary_form=True) or b""


@pytest.fixture
def look(tls, authority):
    return Look(tls, authority)


def messages(caplog) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


async def test_a_replaced_pair_is_loaded_at_the_second_look_that_finds_it(look, tls, authority, caplog):
    caplog.set_level(logging.INFO)
    first = await look()
    put(authority.issue(), tls.files)
    assert await look() == first
    second = await look()
    assert second != first
    assert await look() == second
    assert messages(caplog) == [
        (logging.INFO, f"the certificate '{tls.files.cert}' was replaced and is loaded")
    ]


async def test_files_that_are_replaced_one_after_the_other_are_loaded_when_both_are(
    look, tls, authority, caplog
):
    first = await look()
    old_key = tls.files.key.read_bytes()
    put(authority.issue(), tls.files)
    new_key = tls.files.key.read_bytes()
    tls.files.key.write_bytes(old_key)
    assert await look() == first
    tls.files.key.write_bytes(new_key)
    assert await look() == first
    assert await look() != first
    assert messages(caplog) == []


async def test_a_bad_pair_changes_nothing_and_is_said_once_until_a_good_one_comes(
    look, tls, authority, caplog
):
    first = await look()
    put(authority.issue(), tls.files)
    tls.files.key.write_bytes(authority.issue().private_key_pem.bytes())
    for _ in range(4):
        assert await look() == first
    assert messages(caplog) == [
        (
            logging.ERROR,
            "the new certificate is not used, the old one stays: "
            f"the key '{tls.files.key}' is not the key of the certificate '{tls.files.cert}'",
        )
    ]
    put(authority.issue(), tls.files)
    await look()
    assert await look() != first


async def test_a_pair_that_is_gone_changes_nothing(look, tls, caplog):
    first = await look()
    tls.files.cert.unlink()
    for _ in range(3):
        assert await look() == first
    assert [level for level, _ in messages(caplog)] == [logging.ERROR]


async def test_it_looks_on_its_own_until_it_is_closed(look, tls, authority):
    first = await look()
    watch = certificate_watch(tls, every_s=0.001)
    watch.start()
    put(authority.issue(), tls.files)
    await until(lambda: look.served() != first)
    await watch.close()
    assert len(watch._tasks) == 0
