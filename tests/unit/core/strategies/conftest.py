"""Small fleets to choose from: builders with harmless defaults, so that a test names what it is about."""

from collections.abc import Callable
from random import Random

import pytest

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Candidate, FleetView
from router.core.request import EMPTY_CHAIN, Chain, Turn
from router.core.ring import Ring
from tests.support import candidates


def _view(
    *candidates: Candidate,
    home: str | None = None,
    prompt: int = 1000,
    ring: Ring | None = None,
    serial: int = 0,
) -> FleetView:
    return FleetView(
        now=100.0,
        candidates=candidates,
        home=None if home is None else ReplicaId(home),
        prompt_tokens=prompt,
        ring=Ring([c.replica for c in candidates], 16) if ring is None else ring,
        serial=serial,
    )


def _turn(session: str | None = "s", *, opening_share: float | None = None) -> Turn:
    """`opening_share`: how much of the prompt is the conversation's opening; `None` for an empty chain."""
    chain = EMPTY_CHAIN
    if opening_share is not None:
        chain = Chain((1, 2), (int(1000 * opening_share), 1000), 1)
    return Turn(
        path="/v1/chat/completions",
        model="m",
        tenant=OPEN_TENANT,
        session=None if session is None else SessionKey(session),
        session_source="" if session is None else "x-session-id",
        chain=chain,
    )


@pytest.fixture(scope="session")
def candidate() -> Callable[..., Candidate]:
    return candidates.candidate


@pytest.fixture(scope="session")
def view() -> Callable[..., FleetView]:
    return _view


@pytest.fixture(scope="session")
def turn() -> Callable[..., Turn]:
    return _turn


@pytest.fixture(scope="session")
def owned_by() -> Callable[[Ring, str], str]:
    """A session key that the ring gives to the named replica."""

    def key(ring: Ring, name: str) -> str:
        return next(k for i in range(10_000) if next(ring.order(SessionKey(k := f"session-{i}"))) == name)

    return key


@pytest.fixture
def rng() -> Random:
    return Random(7)
