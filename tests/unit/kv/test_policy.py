"""A store's policy: each wish of the configuration arrives."""

from router.kv.config import KeepingConfig
from router.kv.policy import policy_of


def test_every_wish_arrives():
    keeping = KeepingConfig(high_water=0.5, system_share=0.1, tenant_share=0.3, session_window_s=9.0)
    policy = policy_of(keeping, 100)
    assert policy.capacity_bytes == 100
    assert (policy.high_water, policy.system_share, policy.tenant_share) == (0.5, 0.1, 0.3)
    assert policy.session_window_s == 9.0
