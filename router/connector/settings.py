"""What an operator tells the connector, `kv_connector_extra_config` in vLLM's `--kv-transfer-config`.

Refuses what it does not know, all faults at once. Reads no environment and no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from router.kv.local import ANSWER_S

Mode = Literal["off", "both"]


class SettingsFault(ValueError):
    """`kv_connector_extra_config` cannot be used. The text has a line for each fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds."""

    agent: str = "/run/homing/agent.sock"
    """The KV agent's socket for engines."""
    engine: str = "engine"
    """Names this engine at its agent: each engine of an agent needs its own."""
    mode: Mode = "both"
    """`off`: neither load nor save. `both`: load what the agent has or can pull, save what was computed. Whom
    the agent pulls from and pushes to is its own setting, `push-pool` among them."""
    min_tokens: int = 64
    """Fewer tokens than this are computed rather than loaded."""
    answer_s: float = ANSWER_S
    """The scheduler is told "not yet" for this long at most, then that nothing can be had."""
    stall_s: float = 0.150
    """A load that makes no progress for this long ends, where neither hint nor agent says otherwise."""
    deadline_s: float = 2.0
    """A load ends after this long, where neither hint nor agent says otherwise."""
    deadline_share: float = 0.5
    """A load gets at most this share of the time that computing would take, once that is known."""
    headroom: float = 1.5
    """A load of n blocks needs this many times n blocks that are free or can be evicted."""
    slots_ahead: int = 0
    """Slots of the arena kept ready for saving. 0: as many as one step can fill."""

    def __post_init__(self) -> None:
        """Raises `SettingsFault`."""
        faults = []
        if self.mode not in get_args(Mode):
            faults.append(f"mode: {self.mode!r} is none of {', '.join(get_args(Mode))}")
        for name in ("agent", "engine"):
            if not getattr(self, name):
                faults.append(f"{name}: is empty")
        for name in ("answer_s", "stall_s", "deadline_s", "deadline_share"):
            if not 0 < getattr(self, name) <= _LONGEST_S:
                faults.append(f"{name}: {getattr(self, name)!r} is not between 0 and {_LONGEST_S:g}")
        if not 1 <= self.headroom <= _MOST_HEADROOM:
            faults.append(f"headroom: {self.headroom!r} is not between 1 and {_MOST_HEADROOM:g}")
        for name in ("min_tokens", "slots_ahead"):
            if getattr(self, name) < 0:
                faults.append(f"{name}: {getattr(self, name)!r} is negative")
        if faults:
            raise SettingsFault("\n".join(faults))


_LONGEST_S: Final = 600.0
_MOST_HEADROOM: Final = 100.0


def read_settings(given: Mapping[str, Any] | None) -> Settings:
    """Raises `SettingsFault`."""
    given = given or {}
    known = {field.name: field.type for field in fields(Settings)}
    faults = [f"{name}: unknown; known are {', '.join(known)}" for name in given if name not in known]
    values: dict[str, Any] = {}
    for name, value in given.items():
        wanted = known.get(name)
        if wanted is float and type(value) is int:
            value = float(value)
        if wanted in (int, float) and type(value) is not wanted:
            faults.append(
                f"{name}: {value!r} is no number"
                if wanted is float
                else f"{name}: {value!r} is no whole number"
            )
        elif wanted not in (int, float, None) and type(value) is not str:
            faults.append(f"{name}: {value!r} is no text")
        else:
            values[name] = value
    if faults:
        raise SettingsFault("\n".join(faults))
    return Settings(**values)
