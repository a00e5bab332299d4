"""A small DNS server over UDP that answers what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dns.flags
import dns.message
import dns.rcode
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """Records by (name, type). What is not there does not exist; `raw` takes the place of every answer."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.rcode: dns.rcode.Rcode | None = None
        self.raw: bytes | None = None
        self.silent = False
        self.asked = 0
        self.port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        self.asked += 1
        if self.silent:
            return
        if self.raw is not None:
            # The id of the question, so that the answer is read at all.
            self._transport.sendto(data[:2] + self.raw, address)
            return
        question = dns.message.from_wire(data)
        [asked] = question.question
        answer = dns.message.make_response(question)
        answer.flags |= dns.flags.RA
        kind = dns.rdatatype.to_text(asked.rdtype)
        found = self.records.get((str(asked.name), kind))
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif found is None:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif found:
            answer.answer.append(dns.rrset.from_text(asked.name, 1, "IN", kind, *found))
        self._transport.sendto(answer.to_wire(), address)


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
