"""Which files settings were read from, so that somebody can watch them. Reads none."""

from collections.abc import Iterator
from pathlib import Path

from router.settings.config import RouterConfig
from router.settings.load import Loaded
from router.settings.locate import find_file


def files_of(loaded: Loaded[RouterConfig]) -> tuple[Path, ...]:
    """The config, its policies, and the files that it names, each once; the data port's certificate and key
    apart, which are loaded on their own."""
    return tuple(dict.fromkeys(_files(loaded)))


def _files(loaded: Loaded[RouterConfig]) -> Iterator[Path]:
    policies = loaded.policies if loaded.shadow is None else (*loaded.policies, loaded.shadow)
    for document in (loaded.document, *(policy.document for policy in policies)):
        if document.path is not None:
            yield document.path
    config = loaded.value
    named = [config.access.keys_file, config.access.secret_file, config.admin.token_file]
    found = config.discovery
    for trust in (*config.replicas, found.dns, found.kubernetes):
        named += [trust.ca, trust.api_key_file] if trust is not None else []
    for written in named:
        if written is not None and (path := find_file(written, loaded.folder)) is not None:
            yield path
