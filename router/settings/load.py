"""Loads config and policy files: every fault of all of them at once, each with its file and line.

Policies come from local files only: their `module:Class` is imported to check its parameters.
"""

import json
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from router.base.errors import SettingsError
from router.settings.config import ReplicasFile, RouterConfig
from router.settings.document import Document, Fault, Loc, read_document
from router.settings.explain import explain, nearest
from router.settings.fields import Address, parse_address, parse_replica_url
from router.settings.locate import find_file, is_bare_name, shipped_folder, shipped_policies, shown
from router.settings.notices import config_notices, policy_notices
from router.settings.policy import Bound, Policy
from router.settings.strategies import PLACES_BY_BOUND, parameters, resolve

T = TypeVar("T", bound=BaseModel)

# Keys that only one kind of file has at its top, and what to do with such a file. The router's has the last
# two, of which one at least is in nearly all of them.
_KINDS: Final = {
    "kv_agent": "this is a KV agent's file; it goes with `homing kv-agent -c`",
    "kv_gateway": "this is a KV gateway's file; it goes with `homing kv-gateway -c`",
    "policy": "this is a policy; name it under `policies` in the router's config, or after `--policy`",
    "keys": "this is a file of API keys; name it in the router's config, as `access.keys_file`",
    "replicas": "this is a router's config; it goes with `homing serve -c`",
    "policies": "this is a router's config; it goes with `homing serve -c`",
}


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A file that can be used."""

    value: T
    document: Document
    """For faults that show later, with their lines. Without any where the value came from flags."""
    folder: Path
    """Files that it names are looked for here first."""
    notices: tuple[str, ...] = ()
    """What it asks for and does not get in this version, and the like: complete lines."""
    policies: "tuple[Loaded[Policy], ...]" = ()
    """Of a config: the default first, then the other listed ones, then those that only routes name."""
    shadow: "Loaded[Policy] | None" = None
    """Of a config: the policy that decides without effect."""


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A file as far as it could be read. `value` is `None` where it has a fault of its own."""

    value: T | None
    document: Document
    folder: Path
    faults: tuple[Fault, ...] = ()
    """Its own and those of the policies that it names."""
    notices: tuple[str, ...] = ()
    policies: "tuple[Reading[Policy], ...]" = ()
    shadow: "Reading[Policy] | None" = None

    def loaded(self) -> Loaded[T]:
        """Raises `SettingsError` with all faults."""
        if self.faults or self.value is None:
            raise SettingsError(lines_of(self.faults))
        policies = tuple(policy.loaded() for policy in self.policies)
        shadow = self.shadow.loaded() if self.shadow is not None else None
        return Loaded(self.value, self.document, self.folder, self.notices, policies, shadow)


# Wherever `code` is taken: the `module:Class` names that policies may use; `None` = any. Only the start loads
# code. What comes later may use what is loaded.


def load_config(path: Path, code: Container[str] | None = None) -> Loaded[RouterConfig]:
    """A config and all policies that it names. Raises `SettingsError` with every fault of all of them."""
    return read_config(read_document(path, shown(path)), path.parent, code).loaded()


def load_policy(path_or_name: str, code: Container[str] | None = None) -> Loaded[Policy]:
    """A policy from a file, or a shipped one by its name. Raises `SettingsError` with every fault."""
    try:
        path = find_policy(path_or_name, Path())
    except ValueError as error:
        raise SettingsError([str(error)]) from None
    return read_policy(read_document(path, shown(path)), path.parent, code).loaded()


def read_policy(document: Document, folder: Path, code: Container[str] | None = None) -> Reading[Policy]:
    """Check a policy file that has been read."""
    policy, faults = checked(Policy, document)
    faults += _strategy_faults(document, policy, code)
    if faults:
        return Reading(None, document, folder, _ordered(faults))
    # Shipped policies name keys of later versions for all to see; nobody here asked for their effect.
    notices = () if folder.resolve() == shipped_folder().resolve() else tuple(policy_notices(document))
    return Reading(policy, document, folder, notices=notices)


def read_config(
    document: Document, folder: Path, code: Container[str] | None = None
) -> Reading[RouterConfig]:
    """Check a config file that has been read, and read and check the policies that it names."""
    config, faults = checked(RouterConfig, document)
    faults += _replica_faults(document)
    faults += _role_faults(document)
    faults += _address_faults(document)
    policies, policy_faults = _policies(document, folder, code)
    shadow, shadow_faults = _shadow(document, folder, code)
    faults += policy_faults + shadow_faults
    named = (*policies, shadow) if shadow is not None else policies
    every = _ordered(faults) + tuple(fault for policy in named for fault in policy.faults)
    if every:
        return Reading(None if faults else config, document, folder, every, policies=policies, shadow=shadow)
    notices = (*config_notices(document), *(line for policy in named for line in policy.notices))
    return Reading(config, document, folder, (), notices, policies, shadow)


def read_replicas(document: Document, folder: Path) -> Reading[ReplicasFile]:
    """Check a file of replicas that has been read."""
    file, faults = checked(ReplicasFile, document)
    faults += _replica_faults(document)
    return Reading(None if faults else file, document, folder, _ordered(faults))


def lines_of(faults: Iterable[Fault]) -> list[str]:
    """As text, each once: a policy that is named twice is not at fault twice."""
    return list(dict.fromkeys(map(str, faults)))


def find_policy(written: str, folder: Path) -> Path:
    """The file of a policy named as in `policies`. Raises `ValueError` with the nearest name."""
    shipped = shipped_policies()
    if is_bare_name(written):
        if written not in shipped:
            raise ValueError(f"no policy '{written}' is shipped{nearest(written, shipped)}")
        return shipped[written]
    path = find_file(written, folder)
    if path is None:
        beside = "" if shown(folder) == "." else f"{shown(folder)} or in "
        places = "" if Path(written).is_absolute() else f" in {beside}the working directory"
        stem = Path(written).stem
        hint = f"; write '{stem}' for the shipped policy" if stem in shipped else ""
        raise ValueError(f"no file '{written}'{places}{hint}")
    return path


def same_address(one: Address, other: Address) -> bool:
    """Whether two listeners would want the same port of the same host. Port 0 never collides."""
    anywhere = {"0.0.0.0", "::"}
    overlap = one.host == other.host or one.host in anywhere or other.host in anywhere
    return overlap and one.port == other.port and one.port != 0


def checked(shape: type[T], document: Document) -> tuple[T | None, list[Fault]]:
    """The model, or what is wrong. A line that is malformed is not blamed a second time for its value."""
    faults = list(document.faults)
    if document.value is None:
        return None, faults
    kinds = [key for key in _KINDS if document.at(key) is not None]
    if kinds and not any(key in shape.model_fields for key in kinds):
        # Each of its keys would be called unknown.
        return None, [*faults, document.fault((kinds[0],), _KINDS[kinds[0]])]
    malformed = {fault.line for fault in faults}
    try:
        value = shape.model_validate_json(json.dumps(document.value))
    except ValidationError as error:
        faults += [fault for fault in explain(error, document, shape) if fault.line not in malformed]
        return None, faults
    return value, faults


def _strategy_faults(document: Document, policy: Policy | None, code: Container[str] | None) -> list[Fault]:
    name = document.at("strategy")
    if not isinstance(name, str):
        return []
    try:
        strategy = resolve(name, code)
    except ValueError as error:
        return [document.fault(("strategy",), f"strategy: {error}")]
    if policy is None:
        return []
    faults = [
        document.fault(("params", key), f"params.{key}: strategy {name} takes it from place.bound.{key}")
        for key in sorted(policy.params.keys() & Bound.model_fields.keys())
        if name in PLACES_BY_BOUND
    ]
    try:
        parameters(strategy, policy)
    except ValidationError as error:
        faults += explain(error, document, strategy.params, under=("params",))
    return faults


def _replica_faults(document: Document) -> list[Fault]:
    """Names and URLs given twice. From the plain values, so that no other fault hides them."""
    faults = []
    first: dict[tuple[str, str], int] = {}
    for index, item in enumerate(_items(document, "replicas")):
        for key in ("name", "url"):
            value = item.get(key) if isinstance(item, dict) else None
            if not isinstance(value, str):
                continue
            loc = ("replicas", index, key)
            if key == "url":
                try:
                    value = parse_replica_url(value)
                except ValueError:
                    continue  # told with its own line
            line = document.line_of(loc)
            if (key, value) in first:
                what = f"replicas[{index}].{key}: '{value}' is already on line {first[key, value]}"
                faults.append(document.fault(loc, what))
            first.setdefault((key, value), line)
    return faults


def _role_faults(document: Document) -> list[Fault]:
    """Replicas that prefill, where nobody fetches what they compute. Those that are found may, too."""
    if isinstance(document.at("discovery"), dict):
        return []
    roles = [item.get("role") if isinstance(item, dict) else None for item in _items(document, "replicas")]
    if "decode" in roles:
        return []
    what = "role: 'prefill', and no replica has role: decode: nobody would answer with what it computes"
    return [
        document.fault(("replicas", index, "role"), f"replicas[{index}].{what}")
        for index, role in enumerate(roles)
        if role == "prefill"
    ]


def _address_faults(document: Document) -> list[Fault]:
    try:
        listen = parse_address(document.at("listen") or "127.0.0.1:8080")
        admin = parse_address(document.at("admin", "listen") or "127.0.0.1:9090")
    except ValueError:
        return []  # told with its own line
    if not same_address(listen, admin):
        return []
    what = f"admin.listen: {admin} is also the data port's; give each its own"
    return [document.fault(("admin", "listen"), what)]


def _policies(
    document: Document, folder: Path, code: Container[str] | None
) -> tuple[tuple[Reading[Policy], ...], list[Fault]]:
    """The policies that are listed, then those that only routes name; and faults of the naming."""
    if document.value is None:
        return (), []
    readings: list[Reading[Policy]] = []
    faults: list[Fault] = []
    names: dict[str, int] = {}
    unnamed = False
    listed = _items(document, "policies") if document.at("policies") is not None else ["home"]
    for index, written in enumerate(listed):
        loc: Loc = ("policies", index)
        if not isinstance(written, str) or not written:
            continue  # told by the model
        try:
            path = find_policy(written, folder)
        except ValueError as error:
            faults.append(document.fault(loc, f"policies[{index}]: {error}"))
            unnamed = True
            continue
        reading = read_policy(read_document(path, shown(path)), path.parent, code)
        readings.append(reading)
        name = reading.document.at("policy")
        if not isinstance(name, str):
            unnamed = True
        elif name in names:
            what = f"policies[{index}]: a policy named '{name}' is already on line {names[name]}"
            faults.append(document.fault(loc, what))
        else:
            names[name] = document.line_of(loc)
    shipped = shipped_policies()
    for index, route in enumerate(_items(document, "routes")):
        name = route.get("policy") if isinstance(route, dict) else None
        if not isinstance(name, str) or name in names:
            continue
        loc = ("routes", index, "policy")
        if name in shipped:
            readings.append(
                read_policy(read_document(shipped[name], shown(shipped[name])), shipped[name].parent)
            )
            names[name] = document.line_of(loc)
        elif not unnamed:
            # While a listed policy cannot be read, its name may be the very one.
            what = f"routes[{index}].policy: unknown policy '{name}'{nearest(name, {*names, *shipped})}"
            faults.append(document.fault(loc, what))
    return tuple(readings), faults


def _shadow(
    document: Document, folder: Path, code: Container[str] | None
) -> tuple[Reading[Policy] | None, list[Fault]]:
    """The policy that decides without effect, if there is one; and the fault of its naming."""
    written = document.at("shadow")
    if not isinstance(written, str) or not written:
        return None, []  # told by the model
    try:
        path = find_policy(written, folder)
    except ValueError as error:
        return None, [document.fault(("shadow",), f"shadow: {error}")]
    return read_policy(read_document(path, shown(path)), path.parent, code), []


def _items(document: Document, key: str) -> list[object]:
    items = document.at(key)
    return items if isinstance(items, list) else []


def _ordered(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.line or 0))
