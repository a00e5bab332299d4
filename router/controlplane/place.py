"""What a worker is given by the process that starts it, as one argument of its command line."""

import msgspec

from router.base.errors import HomingError


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One worker's. Sockets are numbers of files that it inherits."""

    number: int
    """From 0."""
    of: int
    """Workers that share the work."""
    data: tuple[int, ...]
    """What clients connect to, which all workers accept from."""
    admin: int
    """What its parent asks it at, listening."""
    link: int
    """One end of a pair; the other end is its parent's, and ends with it."""
    lock: int
    """That of the crew's folder, which it holds until it ends."""
    recall_from: str
    """The file that holds what was known before; it need not be there."""
    leave_at: str
    """The file to write down in what is known."""
    policies: str
    """The file with the policies that the others go by; it need not be there."""

    def text(self) -> str:
        """As an argument."""
        return msgspec.json.encode(self).decode()


def read_place(text: str) -> Place:
    """A place from its argument. Raises `HomingError`."""
    try:
        return msgspec.json.decode(text, type=Place)
    except msgspec.MsgspecError as error:
        raise HomingError(f"--worker is given by 'homing serve --workers', not by hand: {error}") from error
