"""The policies in force: which there are, how many turns each has decided on, and what each may retry.

What a policy says is its `Plan`'s; what it means is for those that go by it.
"""

from collections.abc import Sequence
from typing import Final

from router.core.observe import Outcome
from router.core.plan import Plan
from router.core.retry import RetryBudget

# How an attempt ends at a replica that is not there (any more).
_GONE: Final = frozenset({Outcome.DIED, Outcome.CONNECT_FAILED})


class Policies:
    """Plans by place; the first is the default. Raises `ValueError` for none.

    A turn that is under way goes by the place of its policy: under what stands there, or under the default
    where nothing does any more.
    """

    __slots__ = ("_budgets", "_deposited", "_plans", "in_force", "served")

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.in_force: tuple[Plan, ...] = ()
        self._plans: tuple[Plan, ...] = ()
        """Those in force, then the default in the places of those that were."""
        self._budgets: tuple[RetryBudget, ...] = ()
        self.served: list[int] = []
        """Turns that each has decided on, by place."""
        self._deposited: list[int] = []
        """How many of those its retry budget has been told of."""
        self.replace(plans)

    def replace(self, plans: Sequence[Plan]) -> None:
        """Put others in force, all at once. What is counted, and a budget that stays the same, goes on."""
        if not plans:
            raise ValueError("an engine needs at least one plan")
        before, budgets = self._plans, self._budgets
        self.in_force = tuple(plans)
        padded = (*plans, *(plans[0] for _ in range(len(before) - len(plans))))
        self._plans = padded
        self._budgets = tuple(
            budgets[at]
            if at < len(before) and before[at].retry.budget == plan.retry.budget
            else RetryBudget(share=plan.retry.budget)
            for at, plan in enumerate(padded)
        )
        new = [0] * (len(padded) - len(before))
        self.served += new
        self._deposited += new

    def plan(self, place: int) -> Plan:
        """The policy at a place."""
        return self._plans[place]

    @property
    def default(self) -> Plan:
        """The first."""
        return self._plans[0]

    def place_of(self, name: str) -> int:
        """Where the policy of a name is; the default's place if it is in force no longer."""
        return next((place for place, plan in enumerate(self._plans) if plan.name == name), 0)

    @property
    def idle_s(self) -> float:
        """What the policy that forgets sessions last waits for."""
        return max(plan.session.idle_s for plan in self.in_force)

    @property
    def vnodes(self) -> frozenset[int]:
        """Virtual nodes a replica, of each ring that some policy goes by."""
        return frozenset(plan.vnodes for plan in self._plans)

    def may_retry(self, outcomes: Sequence[Outcome], now: float, place: int) -> bool:
        """Whether a turn whose attempts ended so may be tried on another replica. Draws on the budget."""
        retry = self._plans[place].retry
        deaths = sum(outcome is Outcome.DIED for outcome in outcomes)
        if len(outcomes) > retry.attempts or deaths > retry.after_death:
            return False
        # The budget keeps retries from multiplying the load of a fleet that fails. What a replica had that is
        # gone is moved, not multiplied; and all of it comes at once.
        if outcomes[-1] in _GONE:
            return True
        budget = self._budgets[place]
        budget.deposit(now, self.served[place] - self._deposited[place])
        self._deposited[place] = self.served[place]
        return budget.withdraw(now)
