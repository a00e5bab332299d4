"""The frozen view of the fleet that one turn is decided on: where its session lives, what each replica holds
of its prompt, and how much each has to do.

Looks, and decides nothing; nothing that it looks at is changed by it.
"""

from collections.abc import Mapping
from typing import Final

from router.base.errors import ErrorKind, Refused
from router.base.ids import ReplicaId
from router.core.continuing import Continuing
from router.core.decide import Candidate, FleetView, Pulls
from router.core.member import Member
from router.core.members import Members
from router.core.model import Model
from router.core.policies import Policies
from router.core.pulling import Pulling
from router.core.queue import due_at
from router.core.request import Turn
from router.core.session import Session, SessionTable
from router.core.shelves import Shelves
from router.core.waiting import Rank
from router.core.whereabouts import residents

# Where the policy sets no limit on turns in flight, a replica is over it with so many times the mean and so
# many turns beyond.
_AUTO_RELATIVE: Final = 2.0
_AUTO_ABSOLUTE: Final = 32


class Views:
    """Makes views of one fleet. `pulling` is `None` where nothing is pulled."""

    __slots__ = ("_continuing", "_members", "_policies", "_pulling", "_sessions", "_shelves")

    def __init__(
        self,
        policies: Policies,
        members: Members,
        sessions: SessionTable,
        shelves: Shelves,
        continuing: Continuing,
        pulling: Pulling | None,
    ) -> None:
        self._policies = policies
        self._members = members
        self._sessions = sessions
        self._shelves = shelves
        self._continuing = continuing
        self._pulling = pulling

    def look(
        self,
        turn: Turn,
        now: float,
        place: int,
        members: list[Member],
        model: Model,
        rank: Rank | None,
    ) -> tuple[FleetView, dict[int, int]]:
        """The view of these replicas under the policy of that place, and how deep each shelf holds the
        prompt. Raises `Refused` where all are over a hard limit.

        `rank`: of a turn that may wait, which no limit refuses; `None` for one that does not.
        """
        plan = self._policies.plan(place)
        hashes, ends = turn.chain.hashes, turn.chain.ends
        ratio = model.ratio.value
        depths = self._shelves.depths(hashes)
        session = self._sessions.get(model.key(turn.session), now) if turn.session is not None else None
        parent: ReplicaId | None = None
        if session is None and turn.parent is not None:
            started_by = self._sessions.get(model.key(turn.parent), now)
            parent = started_by.home if started_by is not None else None
        home, home_cached, prompt_tokens = self._at_home(turn, session, depths, ratio)

        limit = plan.overload.in_flight
        # A replica whose KV is full is as busy as it should be where turns wait here for it to be free.
        kv_limit = plan.overload.kv_usage if plan.queue is None else None
        in_flights = [member.in_flight for member in members]
        if limit is None:
            most = int(_AUTO_RELATIVE * sum(in_flights) / len(members)) + _AUTO_ABSOLUTE
        else:
            most = limit - 1
            if min(in_flights) > most and rank is None:
                raise Refused(
                    ErrorKind.OVERLOADED,
                    f"every replica for this turn is at the policy's limit of {limit} turns in flight",
                    retry_after_s=1.0,
                )
        known: dict[ReplicaId, int] | None = None
        moved: ReplicaId | None = None
        if self._members.followed and turn.session is not None:
            known = residents(turn.session, members)
            if home_cached < 0 and home in known and session is not None and session.tail in hashes:
                # It goes on from the last turn, though bookkeeping has let go of that turn's segments.
                grown = ends[-1] - ends[hashes.index(session.tail)]
                prompt_tokens = session.resident_tokens - session.reply_tokens + int(grown * ratio)
                home_cached = 0
            moved = _elsewhere(known, home, session.resident_tokens if session is not None else 0)
            if moved is not None:
                home = moved
        candidates = []
        for member in members:
            if member.due:
                member.pass_prefill(now)
            in_flight = member.in_flight
            over: str | None = None
            if in_flight > most:
                over = f"{in_flight} in flight, limit {most + 1}"
            elif kv_limit is not None:
                usage = member.kv_usage
                if usage is not None and usage > kv_limit:
                    over = f"KV usage {usage:.2f}, limit {kv_limit:g}"
            replica = member.id
            if replica == home and home_cached >= 0:
                cached = home_cached
            elif depth := depths.get(member.reach, 0):
                cached = int(ends[depth - 1] * ratio)
            else:
                cached = 0
            reloaded = 0
            if known is not None and replica in known:
                # Where the prompt goes on from the session's last, all that lies there is found; where it
                # does not, no more than what it shares with it.
                resident = known[replica]
                goes_on = session is None or replica == moved or (replica == home and home_cached >= 0)
                if goes_on or resident < cached:
                    cached = resident
                if cached > prompt_tokens:
                    cached = prompt_tokens
            elif cached:
                trust = member.delivery.trust
                if trust != 1.0:
                    cached = int(cached * trust)
            if cached and member.reach != member.shelf:
                near = depths.get(member.shelf, 0)
                if near < depths.get(member.reach, 0):
                    reloaded = max(0, cached - int(ends[near - 1] * ratio)) if near else cached
            curve = member.learned.curve
            wait_s = member.before_s(now)
            line = member.line
            held = ahead = wanted = held_turns = 0
            if line is not None:
                held, held_turns = line.tokens, len(line)
                if rank is not None:
                    ahead, wanted = line.ahead(due_at(*rank, member, prompt_tokens - cached, prompt_tokens))
                    wait_s += ahead * curve.token_s
            free = member.free_tokens()
            slot_s = waiting = 0.0
            if (free is not None and prompt_tokens + wanted > free) or member.seats is not None:
                slot_s = member.slot_s(prompt_tokens, wanted, free)
                waiting = held_turns + len(member.prefilling) + member.strangers_waiting
            candidates.append(
                Candidate(
                    replica,
                    cached,
                    in_flight,
                    member.pending_tokens,
                    member.working_set.tokens,
                    member.capacity_tokens,
                    member.foreign,
                    member.failures_lately(now) if member.failing else 0.0,
                    member.placed_at,
                    over,
                    free,
                    held,
                    ahead,
                    held_turns,
                    reloaded,
                    member.reach_tokens,
                    wait_s,
                    slot_s,
                    curve,
                    waiting,
                    member.learned.holding.mean_s,
                    member.arriving_tokens,
                    member.link_s(now) if reloaded else 0.0,
                )
            )
        pulls: Pulls | None = None
        if self._pulling is not None:
            pulls = self._pulling.view(turn, session, ends, ratio, depths, now)
        view = FleetView(
            now,
            tuple(candidates),
            home,
            prompt_tokens,
            self._members.ring(plan.vnodes),
            self._policies.served[place],
            parent,
            pulls,
        )
        return view, depths

    def _at_home(
        self, turn: Turn, session: Session | None, depths: dict[int, int], ratio: float
    ) -> tuple[ReplicaId | None, int, int]:
        """Where the turn's session lives, how many tokens of the prompt are cached there, and how many the
        prompt has.

        No home where the session has none, or where that has restarted since. What is cached there is below
        0 where the session's last turn does not tell.
        """
        hashes, ends = turn.chain.hashes, turn.chain.ends
        prompt_tokens = int(ends[-1] * ratio) if ends else 0
        if session is None:
            return None, -1, prompt_tokens
        member = self._members.get(session.home)
        if member is None:
            return session.home, -1, prompt_tokens
        if member.epoch != session.home_epoch:
            return None, -1, prompt_tokens
        resident, reply = session.resident_tokens, session.reply_tokens
        depth = depths.get(member.reach, 0)
        if depth and hashes[depth - 1] == session.tail:
            # The prompt goes on from the last turn: its length and its reply are known, not
            # estimated, and the reply's tokens are in the cache too.
            grown = int((ends[-1] - ends[depth - 1]) * ratio)
            prompt_tokens = resident - reply + grown
            # Where the prompt grew by less than the reply, not all of that came back: its reasoning
            # was dropped, and with it what lies behind.
            cached = resident if grown >= reply else resident - reply
            return session.home, cached if cached < prompt_tokens else prompt_tokens, prompt_tokens
        if hashes and turn.response_id is not None and self._continuing.goes_on(turn, session):
            # The body holds only what is new: all that came before is in the replica's keeping.
            return session.home, resident, prompt_tokens + resident
        return session.home, -1, prompt_tokens


def _elsewhere(known: Mapping[ReplicaId, int], home: ReplicaId | None, at_home: int) -> ReplicaId | None:
    """Who holds more of a session than its home does; `None` = home it is.

    Another router gave it its last turns, or what we had at home is evicted. `at_home` counts where home's
    own events do not say.
    """
    if not known:
        return None
    best = max(known, key=lambda replica: (known[replica], replica == home))
    most = known.get(home, at_home) if home is not None else 0
    return best if best != home and known[best] > most else None
