"""Checks settings files without running anything, and describes them: `homing check`, `homing schema`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from router.settings.config import RouterConfig
from router.settings.credentials import KeysFile, inspect_secrets, keys_of
from router.settings.document import Document, read_document
from router.settings.kv import AgentFile, F, GatewayFile, is_kv_agent, is_kv_gateway, read_kv_file
from router.settings.load import lines_of, read_config, read_policy, read_replicas
from router.settings.locate import find_file, shown
from router.settings.policy import Policy


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was found in all files together: complete lines, each once."""

    faults: tuple[str, ...]
    """The router would refuse to start."""
    notices: tuple[str, ...]
    """The router would start, and this is worth knowing."""


def check_files(paths: Iterable[Path], environ: Mapping[str, str]) -> CheckResult:
    """Check settings files of every kind; which one a file is shows in its keys.

    A secret that this machine lacks is a notice: files are checked in other places than they run.
    """
    faults: list[str] = []
    notices: list[str] = []
    for path in paths:
        found = _check(path, environ)
        faults += found.faults
        notices += found.notices
    return CheckResult(tuple(dict.fromkeys(faults)), tuple(dict.fromkeys(notices)))


def schema() -> dict[str, Any]:
    """A JSON schema that each kind of file fulfils, each under its name in `$defs`."""
    # In serialization mode the defaults stand as a file would have them, `64MiB` and not 67108864.
    models: tuple[type[BaseModel], ...] = (RouterConfig, Policy, KeysFile, AgentFile, GatewayFile)
    refs, described = models_json_schema([(model, "serialization") for model in models])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Homing: config, policy, keys and KV files",
        "anyOf": [refs[model, "serialization"] for model in models],
        **described,
    }


def _check(path: Path, environ: Mapping[str, str]) -> CheckResult:
    name = shown(path)
    hidden = read_document(path, name, secret=True)
    if _is_keys_file(hidden, path):
        _, wrong = keys_of(hidden)
        return CheckResult(tuple(lines_of(wrong)), ())
    document = read_document(path, name)
    if _is_policy(document):
        policy = read_policy(document, path.parent)
        return CheckResult(tuple(lines_of(policy.faults)), policy.notices)
    if is_kv_agent(document):
        return _check_kv(AgentFile, document, path, environ)
    if is_kv_gateway(document):
        return _check_kv(GatewayFile, document, path, environ)
    config = read_config(document, path.parent)
    if config.faults:
        return CheckResult(tuple(lines_of(config.faults)), ())
    loaded = config.loaded()
    _, absent, wrong = inspect_secrets(loaded, environ)
    notices = [
        *config.notices,
        *(f"{fault} (here; `homing serve` would refuse to start)" for fault in absent),
    ]
    if loaded.value.discovery.file is not None:
        listing = find_file(loaded.value.discovery.file, path.parent)
        if listing is None:
            what = f"discovery.file: no file '{loaded.value.discovery.file}' (here; it may come later)"
            notices.append(str(document.fault(("discovery", "file"), what)))
        else:
            wrong += read_replicas(read_document(listing, shown(listing)), listing.parent).faults
    if not loaded.value.replicas and not loaded.value.discovery:
        what = "no replicas are named: every request is refused until `--replica` names one"
        notices.append(str(document.fault(("replicas",), what)))
    return CheckResult(tuple(lines_of(wrong)), tuple(notices))


def _check_kv(shape: type[F], document: Document, path: Path, environ: Mapping[str, str]) -> CheckResult:
    reading = read_kv_file(shape, document, path.parent, environ)
    command = "kv-agent" if shape is AgentFile else "kv-gateway"
    absent = (f"{fault} (here; `homing {command}` would refuse to start)" for fault in reading.absent)
    return CheckResult(tuple(lines_of(reading.wrong)), tuple(absent))


def _is_policy(document: Document) -> bool:
    return document.at("policy") is not None or document.at("strategy") is not None


def _is_keys_file(document: Document, path: Path) -> bool:
    if document.value is not None or not path.is_file():
        return document.at("keys") is not None
    # Not valid YAML: a fault must not quote it if it looks at all like a keys file.
    return re.search(rb"^\s*['\"]?keys['\"]?\s*:", path.read_bytes(), re.MULTILINE) is not None
