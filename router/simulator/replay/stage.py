"""What the parts of a replayed fleet share: its replicas, their turns, what each may ask of all."""

from collections.abc import Sequence
from typing import Final, Protocol

from router.base.ids import ReplicaId
from router.core.fleet import Role
from router.core.observe import Outcome
from router.core.ticket import Ticket
from router.simulator.model import EngineModel
from router.simulator.replay.workload import Player
from router.simulator.settings import ReplicaSettings

REPORT_EVERY_S: Final = 1.0


class Running:
    """A turn that a replica is to answer."""

    __slots__ = (
        "asked_at",
        "cached_tokens",
        "failed",
        "handed",
        "hashes",
        "outcomes",
        "player",
        "prompt",
        "ticket",
        "whole",
    )

    def __init__(
        self, player: Player, ticket: Ticket, hashes: Sequence[int], asked_at: float, *, whole: bool
    ) -> None:
        self.player = player
        self.ticket = ticket
        self.prompt = player.hashes
        """The blocks of its prompt."""
        self.hashes = hashes
        """Of its prompt and of its answer."""
        self.asked_at = asked_at
        """When it was first asked for: earlier than its player arrived, where a replica died with it."""
        self.whole = whole
        """Its answer comes all at once, although it was to be streamed."""
        self.handed = False
        """Another replica computed its prompt."""
        self.cached_tokens = 0
        self.outcomes: tuple[Outcome, ...] = ()
        """Of the replicas that failed it before it had an answer, `failed`."""
        self.failed: tuple[ReplicaId, ...] = ()


class Replica:
    """A replica's model, and what is due of it."""

    __slots__ = ("dead", "due", "id", "model", "offset_s", "role", "running", "started_at", "watched")

    def __init__(self, name: ReplicaId, role: Role, share: float, settings: ReplicaSettings) -> None:
        self.id = name
        self.role = role
        self.model = EngineModel(settings, token_events=False)
        self.running: dict[str, Running] = {}
        self.due: float | None = None
        """When it is to be woken; other wakes are out of date."""
        self.watched = False
        """Whether a look at its metrics is due. There is none while it stays as idle as it was reported, but
        of one that is, or was, away."""
        self.offset_s = share * REPORT_EVERY_S
        """Replicas are looked at one after the other."""
        self.dead = False
        self.started_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.model.in_flight == 0

    @property
    def is_tried(self) -> bool:
        """Whether it is looked at although it is idle: it is dead, or comes back."""
        return self.dead or self.started_at > 0.0


class Kept:
    """Blocks of a job that has finished, which its replica keeps for another to fetch."""

    __slots__ = ("job", "model", "replica")

    def __init__(self, job: str, replica: Replica) -> None:
        self.job = job
        self.replica = replica
        self.model = replica.model
        """Of the life that keeps them."""


class Alarm:
    """What pairs are to be reminded of: that blocks are kept no longer, or that a prompt has had its time."""

    __slots__ = ("job", "kept")

    def __init__(self, job: str, kept: Kept | None) -> None:
        self.job = job
        self.kept = kept


class Stage(Protocol):
    """What the rest of the fleet does for pulls and pairs."""

    def next_name(self) -> str:
        """Of a job, and of the transfer that it waits for."""

    def set_wake(self, replica: Replica, now: float) -> None:
        """A replica's next event may have changed."""

    def set_watch(self, replica: Replica, now: float) -> None:
        """A replica has something to do: its metrics are looked at."""

    def set_network(self, now: float) -> None:
        """The next transfer's end may have changed."""

    def remind(self, alarm: Alarm, at: float) -> None:
        """Have `Pairs.reminded` called then."""

    def answer(self, name: str, running: Running, pulled: int, now: float, *, keep: bool) -> None:
        """Let a turn's own replica answer; `pulled` leading blocks are on their way there."""

    def move_on(self, running: Running, now: float) -> None:
        """A turn's replica cannot be reached: it goes to another one, if the policy has it so."""

    def ask_again(self, running: Running, now: float) -> None:
        """A turn has come to nothing. Its client asks once more."""
