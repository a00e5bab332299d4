"""How a store of some capacity shares out its room, as the configuration wishes."""

from router.kv.config import KeepingConfig
from router.kv.store import StorePolicy


def policy_of(keeping: KeepingConfig, capacity_bytes: int) -> StorePolicy:
    """The policy of a store of that capacity."""
    return StorePolicy(
        capacity_bytes=capacity_bytes,
        high_water=keeping.high_water,
        system_share=keeping.system_share,
        tenant_share=keeping.tenant_share,
        session_window_s=keeping.session_window_s,
    )
