"""Finds replicas by DNS: one at each address of a name, or at each target of its SRV records.

Asks again at an interval, whatever the records say of their own life. An answer that names nobody is taken
for a mistake: it changes nothing, since a resolver that lost its zone would else empty the fleet, and a
replica that is really gone shows in its probes.
"""

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import dns.asyncresolver
import dns.exception
import dns.resolver

from router.base.system import system_words
from router.controlplane.discovery import Report
from router.controlplane.template import Template

_TIMEOUT_S: Final = 5.0

_SHOWN: Final = 3
"""Records that cannot be used, in one message."""

# Routers side by side do not ask in step.
_JITTER: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, and how often."""

    name: str
    type: str
    """`A`, `AAAA` or `SRV`."""
    port: int | None
    """Of the replicas; SRV records bring their own."""
    every_s: float = 10.0
    server: tuple[str, int] | None = None
    """Who is asked; `None` = the system's resolvers."""


class DnsSource:
    """A `Source`."""

    def __init__(self, question: Question, template: Template, rng: Random) -> None:
        self._question = question
        self._template = template
        self._rng = rng

    async def run(self, report: Report) -> None:
        resolver = self._resolver()
        while True:
            await self._ask(resolver, report)
            await asyncio.sleep(self._question.every_s * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER))

    def _resolver(self) -> dns.asyncresolver.Resolver:
        server = self._question.server
        if server is None:
            return dns.asyncresolver.Resolver()
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = [server[0]], server[1]
        return resolver

    async def _ask(self, resolver: dns.asyncresolver.Resolver, report: Report) -> None:
        question = self._question
        shown = f"{question.type} {question.name}"
        try:
            answer = await resolver.resolve(question.name, question.type, lifetime=_TIMEOUT_S, search=True)
        except (dns.exception.DNSException, OSError) as error:
            report.failed(f"{shown}: {_words(error)}")
            return
        listed, wrong = [], []
        for host, port in sorted(set(map(self._place, answer))):
            try:
                listed.append(self._template.at(host, port))
            except ValueError as error:
                wrong.append(str(error))
        if listed:
            report.found(listed, "; ".join(wrong[:_SHOWN]))
        else:
            report.failed(f"{shown}: names nobody that can be reached: {'; '.join(wrong[:_SHOWN])}")

    def _place(self, record: Any) -> tuple[str, int]:
        """Host and port. A record is of a class that its type names: dnspython cannot say which."""
        if self._question.type == "SRV":
            return str(record.target).rstrip("."), int(record.port)
        return str(record.address), self._question.port or 0


def _words(error: Exception) -> str:
    """dnspython's text, which names every server that it asked and may be long."""
    match error:
        case dns.resolver.NXDOMAIN():
            return "there is no such name"
        case dns.resolver.NoAnswer():
            return "the name has no such records"
        case dns.exception.Timeout():
            return f"no answer within {_TIMEOUT_S:g} s"
        case dns.resolver.NoNameservers():
            return "no server could answer"
        case OSError():
            return system_words(error)
    return f"the answer cannot be read: {type(error).__name__}"
