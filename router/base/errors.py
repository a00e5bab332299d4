"""The error tree. Says whose problem it is; knows nothing of HTTP (`dataplane/problems.py` does)."""

from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a request got no answer from a replica. Each kind has one response in the data plane."""

    BAD_REQUEST = "bad_request"
    """The client sent something that cannot be routed or that is malformed."""
    UNAUTHORIZED = "unauthorized"
    """API keys are configured and the request names none of them."""
    NOT_FOUND = "not_found"
    """No such endpoint."""
    NO_SUCH_MODEL = "no_such_model"
    """Every live replica says what it serves, and none serves this model."""
    NO_REPLICAS = "no_replicas"
    """The fleet is empty."""
    NONE_HEALTHY = "none_healthy"
    """There are replicas, and all are down, draining or not yet probed."""
    OVERLOADED = "overloaded"
    """All eligible replicas are over a hard limit of the policy."""
    QUEUE_FULL = "queue_full"
    """As many turns wait in the router as the policy lets."""
    QUEUE_EXPIRED = "queue_expired"
    """No replica had room for the turn in the time that the policy, or its client, allows."""
    PINNED_GONE = "pinned_gone"
    """The replica that stores the response that this request refers to is gone or down."""
    UPSTREAM_FAILED = "upstream_failed"
    """Replicas failed before the first byte of an answer, and no further attempt is allowed."""
    UPSTREAM_DIED = "upstream_died"
    """Replicas died holding the turn, as many as its policy allows: its prompt may be what felled them."""
    UPSTREAM_TIMEOUT = "upstream_timeout"
    """A replica gave no first byte, or no end, in time."""
    HELD_BYTES_FULL = "held_bytes_full"
    """The router's byte budget for request bodies is used up."""
    SHORTAGE = "shortage"
    """The router is short of something of its own: open files, ports, memory, or answers of the resolver."""
    STOPPING = "stopping"
    """The router is going away and cannot wait for the answer."""
    INTERNAL = "internal"
    """A fault of the router itself."""


class HomingError(Exception):
    """Base of every error that Homing raises on purpose."""


class Refused(HomingError):
    """A turn that gets no replica, with the reason and, where waiting helps, for how long.

    `retry_after_s` is `None` where trying again later would not help.
    """

    def __init__(self, kind: ErrorKind, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class SettingsError(HomingError):
    """Configuration that cannot be used. `faults` are complete lines, `file:line: what, how to mend`."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults
