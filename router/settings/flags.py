"""A config from the command line's flags, alone or over a file. Knows nothing of how flags are parsed."""

from collections.abc import Container, Sequence
from pathlib import Path

from router.base.errors import SettingsError
from router.settings.config import Replica, RouterConfig
from router.settings.document import Document
from router.settings.fields import parse_address, parse_replica_url
from router.settings.load import Loaded, load_policy, same_address


def config_from_flags(
    replicas: Sequence[str] = (),
    policy: str | None = None,
    listen: str | None = None,
    admin: str | None = None,
    *,
    base: Loaded[RouterConfig] | None = None,
    code: Container[str] | None = None,
) -> Loaded[RouterConfig]:
    """The command line's flags, over a config file's values where there is one.

    `replicas` are added to the file's, as r0, r1, …; `policy` becomes the default and the file's policies
    stay for its routes; `listen` and `admin` replace. `code` is as for `load_config`. Raises `SettingsError`
    with every fault.
    """
    faults: list[str] = []
    config = RouterConfig(version=1) if base is None else base.value
    policies = () if base is None else base.policies
    notices = () if base is None else base.notices
    changes: dict[str, object] = {}
    if replicas:
        changes["replicas"] = _replicas(replicas, config.replicas, faults)
    if policy is not None or base is None:
        try:
            chosen = load_policy(policy or config.policies[0], code)
        except SettingsError as error:
            faults += [f"--policy: {fault}" for fault in error.faults] if policy else error.faults
        else:
            name = chosen.value.policy
            policies = (chosen, *(other for other in policies if other.value.policy != name))
            notices = (*notices, *(line for line in chosen.notices if line not in notices))
    for flag, text in (("listen", listen), ("admin", admin)):
        if text is not None:
            try:
                address = parse_address(text)
            except ValueError as error:
                faults.append(f"--{flag}: {error}")
            else:
                changes[flag] = (
                    address if flag == "listen" else config.admin.model_copy(update={"listen": address})
                )
    changed = config.model_copy(update=changes)
    if (listen is not None or admin is not None) and same_address(changed.listen, changed.admin.listen):
        faults.append(f"--listen: {changed.listen} is also the admin port's address; give each its own")
    if faults:
        raise SettingsError(faults)
    document = Document("command line") if base is None else base.document
    shadow = base.shadow if base is not None else None
    return Loaded(changed, document, Path() if base is None else base.folder, notices, policies, shadow)


def _replicas(urls: Sequence[str], configured: tuple[Replica, ...], faults: list[str]) -> tuple[Replica, ...]:
    """The file's replicas and those of the flags. What is wrong with a flag is added to `faults`."""
    names = {replica.name for replica in configured}
    reached = {replica.url: replica.name for replica in configured}
    replicas = list(configured)
    for index, written in enumerate(urls):
        name = f"r{index}"
        try:
            url = parse_replica_url(written)
        except ValueError as error:
            faults.append(f"--replica: {error}")
            continue
        if url in reached:
            faults.append(f"--replica: '{url}' is already replica {reached[url]}")
        elif name in names:
            faults.append(
                f"--replica: '{written}' would be called {name}, as a replica of the file already is"
            )
        else:
            reached[url] = name
            replicas.append(Replica(name=name, url=url))
    return tuple(replicas)
