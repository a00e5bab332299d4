"""What the scheduler's side tells the workers at each step: plain values that may go to another process."""

from typing import NamedTuple

from router.connector.loads import LoadOrder
from router.kv.arena import Handle
from router.kv.keys import Namespace


class SaveOrder(NamedTuple):
    """A full block of the engine, to be copied into a slot."""

    block_id: int
    handle: Handle


class Orders(NamedTuple):
    """A step's orders."""

    namespace: Namespace | None = None
    """What the engine's blocks are; `None` before anybody knows."""
    loads: tuple[LoadOrder, ...] = ()
    saves: tuple[SaveOrder, ...] = ()
