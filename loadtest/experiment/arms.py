"""The arms of the experiment: what travels, and who places the turns."""

from typing import Final, Literal

from router.kv.config import Mode

Arm = Literal["off", "push-pool", "both", "affinity + both"]
ARMS: Final[tuple[Arm, ...]] = ("off", "push-pool", "both", "affinity + both")


def mode_of(arm: Arm) -> Mode:
    """What the replicas' KV agents do."""
    return "off" if arm == "off" else "push-pool" if arm == "push-pool" else "both"


def is_affine(arm: Arm) -> bool:
    """Whether the router's own policy places the turns, and hints where to pull from, or round-robin does,
    which knows nothing of KV."""
    return arm == "affinity + both"
