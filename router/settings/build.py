"""Turns checked settings into what the router runs: plans, replicas, routes. Knows no files, no secrets."""

from dataclasses import replace

from router.base.ids import ReplicaId
from router.core.fleet import ReplicaSpec, Role
from router.core.plan import Overload, PairRules, Plan, PullRules, QueueRules, Retry, SessionRules
from router.settings.config import Replica, RouterConfig
from router.settings.load import Loaded
from router.settings.policy import Policy
from router.settings.routes import RouteTable, Rule
from router.settings.strategies import parameters, resolve


def build_plan(policy: Policy) -> Plan:
    """The plan of one policy.

    Raises `ValueError` (pydantic's is one) where the strategy or its parameters are no good, which a
    policy that was loaded has already been checked for.
    """
    strategy = resolve(policy.strategy)
    return Plan(
        name=policy.policy,
        strategy=strategy.build(parameters(strategy, policy)),
        session=SessionRules(
            headers=policy.session.headers,
            parents=policy.session.parents,
            body=policy.session.body,
            derive=policy.session.derive,
            idle_s=policy.session.idle,
        ),
        overload=Overload(in_flight=policy.overload.in_flight, kv_usage=policy.overload.kv_usage),
        retry=Retry(
            attempts=policy.retry.attempts,
            after_death=policy.retry.after_death,
            budget=policy.retry.budget,
        ),
        queue=QueueRules(
            ageing=policy.queue.ageing,
            horizon_s=policy.queue.horizon,
            in_flight=policy.overload.in_flight,
            most=policy.queue.max,
            most_bytes=policy.queue.bytes,
            leads_s=policy.queue.priorities,
            engine_priorities=policy.queue.engine_priorities,
            wait_s=policy.queue.wait,
        )
        if policy.queue.order == "least-missing"
        else None,
        prefill_tokens_per_s=policy.price.prefill.seed_tokens_per_s,
        pull=PullRules(
            per_source=policy.price.pull.per_source,
            seed_gbps=policy.price.pull.seed_gbps,
            stall_s=policy.price.pull.stall,
            deadline_s=policy.price.pull.deadline,
        ),
        pair=PairRules(
            ttl_s=policy.pair.ttl,
            least_tokens=policy.pair.min_tokens,
            deadline_s=policy.pair.deadline,
            whole_streams=policy.pair.streams == "whole",
            kv_usage=policy.pair.kv_usage,
        ),
        vnodes=policy.place.vnodes,
        refuse_reserved=policy.reserved == "refuse",
    )


def build_plans(loaded: Loaded[RouterConfig], parts: int = 1) -> tuple[Plan, ...]:
    """The plans of all policies of a config, in the order that `build_routes` counts in: 0 is the default.

    `parts`: routers that share the work, and keep within the policies' limits together.
    """
    return tuple(_part(build_plan(policy.value), parts) for policy in loaded.policies)


def _part(plan: Plan, parts: int) -> Plan:
    """What one of so many is to go by. Limits that cannot be shared out evenly are rounded up."""

    def share(whole: int) -> int:
        return -(-whole // parts)

    in_flight = plan.overload.in_flight
    limit = share(in_flight) if in_flight is not None else None
    queue = plan.queue
    if queue is not None:
        queue = replace(queue, most=share(queue.most), most_bytes=share(queue.most_bytes), in_flight=limit)
    return replace(
        plan,
        overload=replace(plan.overload, in_flight=limit),
        queue=queue,
        pull=replace(plan.pull, per_source=share(plan.pull.per_source)),
    )


def build_routes(loaded: Loaded[RouterConfig]) -> RouteTable:
    """The routes of a config, pointing at `build_plans`."""
    index = {policy.value.policy: at for at, policy in enumerate(loaded.policies)}
    return RouteTable(
        [
            Rule(route.match.path, route.match.model, route.match.tenant, index[route.policy])
            for route in loaded.value.routes
        ]
    )


def build_spec(replica: Replica) -> ReplicaSpec:
    """A replica that a file lists, without its API key: that is in `credentials.Secrets`."""
    agent = str(replica.kv_agent) if replica.kv_agent is not None else None
    p2p = str(replica.kv_p2p) if replica.kv_p2p is not None else None
    return ReplicaSpec(
        ReplicaId(replica.name),
        replica.url,
        replica.kv_tokens,
        kv_agent=agent,
        kv_p2p=p2p,
        kv_events=replica.kv_events,
        kv_replay=replica.kv_replay,
        role=Role(replica.role),
        two_way=replica.two_way,
    )
