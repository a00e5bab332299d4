"""Replicas by DNS, asked of a small server of ours."""

from random import Random

import dns.rcode
import pytest
from support.name_server import name_server
from support.plane import until
from support.sources import watched

from router.controlplane import dns_source
from router.controlplane.dns_source import DnsSource, Question
from router.controlplane.template import Template


def source(server, kind="A", name="vllm.test", every_s=0.01):
    question = Question(
        name=name,
        type=kind,
        port=None if kind == "SRV" else 8000,
        every_s=every_s,
        server=("127.0.0.1", server.port),
    )
    return DnsSource(question, Template(), Random(1))


async def test_each_address_of_a_name_is_a_replica_and_changes_are_seen():
    async with name_server() as server:
        server.records["vllm.test.", "A"] = ["10.0.0.2", "10.0.0.1"]
        async with watched(source(server)) as told:
            await until(
                lambda: (
                    told.replicas
                    == {"10.0.0.1-8000": "http://10.0.0.1:8000", "10.0.0.2-8000": "http://10.0.0.2:8000"}
                )
            )
            server.records["vllm.test.", "A"] = ["10.0.0.3"]
            await until(lambda: told.replicas == {"10.0.0.3-8000": "http://10.0.0.3:8000"})


async def test_v6_addresses_are_replicas_too():
    async with name_server() as server:
        server.records["vllm.test.", "AAAA"] = ["2001:db8::7"]
        async with watched(source(server, "AAAA")) as told:
            await until(lambda: told.replicas == {"2001-db8--7-8000": "http://[2001:db8::7]:8000"})


async def test_each_target_of_srv_records_is_a_replica_at_its_port():
    async with name_server() as server:
        server.records["_http._tcp.vllm.test.", "SRV"] = [
            "0 50 8001 one.vllm.test.",
            "10 50 8002 two.vllm.test.",
            "10 50 8002 two.vllm.test.",
        ]
        async with watched(source(server, "SRV", "_http._tcp.vllm.test")) as told:
            await until(
                lambda: (
                    told.replicas
                    == {
                        "one.vllm.test-8001": "http://one.vllm.test:8001",
                        "two.vllm.test-8002": "http://two.vllm.test:8002",
                    }
                )
            )
            assert told.but == ""


async def test_what_no_connection_can_be_made_to_is_left_out_and_shows():
    async with name_server() as server:
        server.records["vllm.test.", "SRV"] = ["0 0 0 gone.test.", "0 0 80 good.test.", "0 0 80 ."]
        async with watched(source(server, "SRV")) as told:
            await until(lambda: told.replicas == {"good.test-80": "http://good.test:80"})
            assert "port 0 cannot be connected to" in told.but
        server.records["vllm.test.", "SRV"] = ["0 0 0 gone.test."]
        async with watched(source(server, "SRV")) as told:
            await until(lambda: told.faults)
            assert told.faults[0].startswith("SRV vllm.test: names nobody that can be reached")


@pytest.mark.parametrize(
    ("records", "rcode", "said"),
    [
        (None, None, "A vllm.test: there is no such name"),
        ([], None, "A vllm.test: the name has no such records"),
        (["10.0.0.1"], dns.rcode.SERVFAIL, "A vllm.test: no server could answer"),
        (["10.0.0.1"], dns.rcode.REFUSED, "A vllm.test: no server could answer"),
    ],
)
async def test_an_answer_that_names_nobody_changes_nothing(records, rcode, said):
    async with name_server() as server:
        server.rcode = rcode
        if records is not None:
            server.records["vllm.test.", "A"] = records
        async with watched(source(server)) as told:
            await until(lambda: told.faults)
            assert (told.faults[0], told.replicas) == (said, None)
            server.rcode = None
            server.records["vllm.test.", "A"] = ["10.0.0.1"]
            await until(lambda: told.replicas is not None)


async def test_a_server_that_is_silent_is_a_fault(monkeypatch):
    monkeypatch.setattr(dns_source, "_TIMEOUT_S", 0.2)
    async with name_server() as server:
        server.silent = True
        async with watched(source(server)) as told:
            await until(lambda: told.faults)
            assert told.faults[0] == "A vllm.test: no answer within 0.2 s"


async def test_a_hostile_server_finds_nobody_and_ends_nothing(monkeypatch):
    monkeypatch.setattr(dns_source, "_TIMEOUT_S", 0.1)
    chance = Random(7)
    async with name_server() as server:
        server.records["vllm.test.", "A"] = ["10.0.0.1"]
        server.raw = b""
        async with watched(source(server)) as told:
            for length in (0, 1, 9, 10, 11, 30, 60, 500, 1400):
                # The first bits say that it is an answer without an error.
                server.raw = b"\x81\x80" * bool(length) + chance.randbytes(length)
                asked = server.asked
                await until(lambda asked=asked: server.asked > asked + 1)
            assert told.replicas is None
            assert told.faults
            server.raw = None
            await until(lambda: told.replicas is not None)
