"""Secrets from files and environment variables, private keys included. None ever shows in a message or repr.

`HOMING_API_KEYS`, `HOMING_SECRET`, `HOMING_ADMIN_TOKEN` and `HOMING_OTLP_HEADERS` take the place of
`access.keys_file`, `access.secret_file`, `admin.token_file` and `telemetry.otlp_headers_file`: where the
variable is set, the file is not read. A variable that is set and empty is a fault, not "no secret": a router
must not open itself because a deployment forgot to fill one in. Spaces and line ends around a secret are not
part of it.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator

from router.base.errors import SettingsError
from router.base.ids import ReplicaId, TenantId
from router.settings.access import AccessKeys
from router.settings.config import (
    Discovery,
    Found,
    Replica,
    ReplicasFile,
    RouterConfig,
    Telemetry,
    Trust,
)
from router.settings.document import Document, Fault, Loc, read_document
from router.settings.explain import dotted, explain
from router.settings.fields import Model
from router.settings.load import Loaded, lines_of
from router.settings.locate import find_file, shown
from router.settings.tls import PairFiles, ServerTls, TlsError, server_tls, shared_context

_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_NOT_TO_SET: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding"}
)


class Access(NamedTuple):
    """What a replica is spoken to with. Its key never shows."""

    api_key: str | None = None
    """`None` = it wants none."""
    tls: ssl.SSLContext | None = None
    """`None` = plain HTTP."""

    def __repr__(self) -> str:
        return "Access(…)"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What nobody else may see, resolved."""

    keys: AccessKeys | None = None
    """`None` = no API keys are configured: everybody may come in, as one tenant."""
    secret: bytes | None = field(default=None, repr=False)
    """What session keys are made with; `None` = none configured: a public constant takes its place, which
    is the same in every router."""
    admin_token: str | None = field(default=None, repr=False)
    """`None` = none configured: one is made up and shown at each start."""
    replica_keys: Mapping[ReplicaId, str] = field(default_factory=dict, repr=False)
    """The API key that each replica wants; absent where it wants none."""
    tls: ServerTls | None = None
    """What the data port speaks TLS with; `None` = it speaks plain HTTP."""
    replica_tls: Mapping[ReplicaId, ssl.SSLContext] = field(default_factory=dict)
    """What each `https` replica is spoken to with. Replicas that are trusted alike share one."""
    otlp_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What a collector is sent along with spans."""
    otlp_tls: ssl.SSLContext | None = None
    """What an `https` collector is spoken to with."""
    found: Mapping[str, Access] = field(default_factory=dict)
    """What replicas are spoken to with that are found: by `dns` or `kubernetes`."""


def _tenant(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}", text) is None:
        raise ValueError("is not a tenant's name: letters, digits and . _ : @ -, a letter or digit first")
    return text


def _digest(text: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise ValueError("is not a SHA-256 digest: 64 hex digits")
    return text


class Key(Model):
    """An API key and the tenant that it names: as a digest, or plain."""

    tenant: Annotated[str, AfterValidator(_tenant)]
    sha256: Annotated[str, AfterValidator(_digest)] | None = None
    key: SecretStr | None = None
    """Hashed on loading and not kept."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.sha256 is None) == (self.key is None):
            raise ValueError("give either sha256 or key")
        if self.key is not None and (wrong := _unusable(self.key.get_secret_value())):
            raise ValueError(f"key {wrong}")
        return self

    def digest(self) -> bytes:
        if self.sha256 is not None:
            return bytes.fromhex(self.sha256)
        assert self.key is not None
        return sha256(self.key.get_secret_value().encode()).digest()


class KeysFile(Model):
    """A keys file."""

    version: Literal[1]
    keys: Annotated[tuple[Key, ...], Field(min_length=1)]


def load_secrets(loaded: Loaded[RouterConfig], environ: Mapping[str, str]) -> Secrets:
    """Everything secret that a config names. Raises `SettingsError` with every fault."""
    secrets, absent, wrong = inspect_secrets(loaded, environ)
    if absent or wrong:
        raise SettingsError(lines_of([*absent, *wrong]))
    return secrets


def inspect_secrets(
    loaded: Loaded[RouterConfig], environ: Mapping[str, str]
) -> tuple[Secrets, list[Fault], list[Fault]]:
    """The secrets, what is absent, and what is wrong.

    What is absent may be present where the router will run; what is wrong is wrong everywhere.
    """
    search = _Search(loaded.document, loaded.folder, environ)
    config = loaded.value
    keys = search.keys(config.access.keys_file)
    secret = search.secret(config.access.secret_file)
    admin_token = search.token("HOMING_ADMIN_TOKEN", ("admin", "token_file"), config.admin.token_file)
    tls = search.server_tls(config)
    replicas = search.replicas(config.replicas)
    secrets = Secrets(
        keys=keys,
        secret=secret,
        admin_token=admin_token,
        replica_keys={replica: key for replica, (key, _) in replicas.items() if key is not None},
        tls=tls,
        replica_tls={replica: tls for replica, (_, tls) in replicas.items() if tls is not None},
        found=search.found(config.discovery),
        otlp_headers=search.otlp_headers(config.telemetry),
        otlp_tls=search.otlp_tls(config.telemetry),
    )
    if not config.admin.listen.is_loopback and secrets.admin_token is None and not search.wrong:
        what = (
            f"admin.listen: {config.admin.listen} is reachable from other machines and needs a token: "
            "give admin.token_file or HOMING_ADMIN_TOKEN"
        )
        search.absent.append(loaded.document.fault(("admin", "listen"), what))
    return secrets, search.absent, search.wrong


def fleet_secret(
    document: Document, folder: Path, environ: Mapping[str, str], written: str | None
) -> tuple[bytes | None, list[Fault], list[Fault]]:
    """The secret of a KV file: `HOMING_SECRET`, or the file that `secret_file` names. With it what is absent,
    and what is wrong."""
    search = _Search(document, folder, environ)
    secret = search.secret(written, ("secret_file",))
    return secret, search.absent, search.wrong


class _Search:
    """Looks each secret up and keeps what is absent and what is wrong."""

    def __init__(self, document: Document, folder: Path, environ: Mapping[str, str]) -> None:
        self._document = document
        self._folder = folder
        self._environ = environ
        self.absent: list[Fault] = []
        self.wrong: list[Fault] = []

    def keys(self, written: str | None) -> AccessKeys | None:
        if "HOMING_API_KEYS" in self._environ:
            keys, faults = parse_api_keys(self._environ["HOMING_API_KEYS"])
            self.wrong += faults
            return keys
        path = self._find(("access", "keys_file"), written)
        if path is None:
            return None
        keys, faults = keys_of(read_document(path, shown(path), secret=True))
        self.wrong += faults
        return keys

    def secret(self, written: str | None, loc: Loc = ("access", "secret_file")) -> bytes | None:
        text = self._given("HOMING_SECRET", loc, written, _unfit)
        return None if text is None else text.encode()

    def token(self, variable: str, loc: Loc, written: str | None) -> str | None:
        return self._given(variable, loc, written, _unusable)

    def replicas(self, replicas: Iterable[Replica]) -> dict[ReplicaId, Access]:
        """What those that the document lists under `replicas` are spoken to with."""
        return {
            ReplicaId(replica.name): self.access(
                ("replicas", index), replica, https=replica.url.startswith("https:")
            )
            for index, replica in enumerate(replicas)
        }

    def found(self, discovery: Discovery) -> dict[str, Access]:
        kinds: dict[str, Found | None] = {"dns": discovery.dns, "kubernetes": discovery.kubernetes}
        return {
            kind: self.access(("discovery", kind), found, https=found.scheme == "https")
            for kind, found in kinds.items()
            if found is not None
        }

    def access(self, loc: Loc, trust: Trust, *, https: bool) -> Access:
        """What `trust`, which is written at `loc`, leads to."""
        key = self._from_file((*loc, "api_key_file"), trust.api_key_file, _unusable)
        if trust.api_key_env is not None:
            at: Loc = (*loc, "api_key_env")
            if trust.api_key_env in self._environ:
                place = self._document.fault(at, f"{dotted(at)}: {trust.api_key_env} ")
                key = self._usable(place, self._environ[trust.api_key_env], _unusable)
            else:
                what = f"{dotted(at)}: the environment has no {trust.api_key_env}"
                self.absent.append(self._document.fault(at, what))
        return Access(key, self._client_tls((*loc, "ca"), trust.ca, verify=trust.verify) if https else None)

    def otlp_headers(self, telemetry: Telemetry) -> tuple[tuple[str, str], ...]:
        """The variable counts only where there is a collector: it may be meant for other programs, too."""
        if telemetry.otlp is None:
            return ()
        loc = ("telemetry", "otlp_headers_file")
        text = self._given("HOMING_OTLP_HEADERS", loc, telemetry.otlp_headers_file, _no_headers)
        return parse_headers(text) if text is not None else ()

    def otlp_tls(self, telemetry: Telemetry) -> ssl.SSLContext | None:
        if telemetry.otlp is None or telemetry.otlp.startswith("http:"):
            return None
        return self._client_tls(("telemetry", "otlp_ca"), telemetry.otlp_ca, verify=True)

    def _client_tls(self, loc: Loc, written: str | None, *, verify: bool) -> ssl.SSLContext | None:
        ca = self._find(loc, written)
        if written is not None and ca is None:
            return None
        try:
            return shared_context(ca, verify=verify)
        except TlsError as error:
            self.wrong.append(self._document.fault(loc, f"{dotted(loc)}: {error}"))
            return None

    def server_tls(self, config: RouterConfig) -> ServerTls | None:
        if config.tls is None:
            return None
        cert = self._find(("tls", "cert"), config.tls.cert)
        key = self._find(("tls", "key"), config.tls.key)
        if cert is None or key is None:
            return None
        try:
            return server_tls(PairFiles(cert, key))
        except TlsError as error:
            self.wrong.append(self._document.fault(("tls", "cert"), f"tls: {error}"))
            return None

    def _given(
        self, variable: str, loc: Loc, written: str | None, wrong_with: Callable[[str], str]
    ) -> str | None:
        if variable in self._environ:
            return self._usable(Fault(variable, None, ""), self._environ[variable].strip(), wrong_with)
        return self._from_file(loc, written, wrong_with)

    def _from_file(self, loc: Loc, written: str | None, wrong_with: Callable[[str], str]) -> str | None:
        path = self._find(loc, written)
        if path is None:
            return None
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self.wrong.append(self._document.fault(loc, f"{dotted(loc)}: cannot read '{written}': {reason}"))
            return None
        place = self._document.fault(loc, f"{dotted(loc)}: '{written}' ")
        return self._usable(place, text.strip(), wrong_with)

    def _find(self, loc: Loc, written: str | None) -> Path | None:
        if written is None:
            return None
        path = find_file(written, self._folder)
        if path is None:
            self.absent.append(self._document.fault(loc, f"{dotted(loc)}: no file '{written}'"))
        return path

    def _usable(self, place: Fault, text: str, wrong_with: Callable[[str], str]) -> str | None:
        """`text`, or `None` and a fault at `place` whose words begin as `place` does."""
        wrong = wrong_with(text)
        if wrong:
            self.wrong.append(place._replace(what=place.what + wrong))
            return None
        return text


def replica_access(reading: Loaded[ReplicasFile], environ: Mapping[str, str]) -> Mapping[ReplicaId, Access]:
    """What the replicas of a file are spoken to with. Raises `SettingsError` with every fault."""
    search = _Search(reading.document, reading.folder, environ)
    access = search.replicas(reading.value.replicas)
    if search.absent or search.wrong:
        raise SettingsError(lines_of([*search.absent, *search.wrong]))
    return access


def keys_of(document: Document) -> tuple[AccessKeys | None, list[Fault]]:
    """The keys of a keys file, read with `secret=True`, or what is wrong with it."""
    faults = list(document.faults)
    if document.value is None:
        return None, faults
    try:
        file = KeysFile.model_validate_json(json.dumps(document.value))
    except ValidationError as error:
        return None, faults + explain(error, document, KeysFile)
    digests: dict[bytes, TenantId] = {}
    for index, key in enumerate(file.keys):
        if key.digest() in digests:
            what = f"keys[{index}]: the same key is given before"
            faults.append(document.fault(("keys", index), what))
        digests[key.digest()] = TenantId(key.tenant)
    return (None, faults) if faults else (AccessKeys(digests.items()), [])


def parse_api_keys(text: str) -> tuple[AccessKeys | None, list[Fault]]:
    """`acme=sha256:<hex>,beta=plain` → keys, or what is wrong, without repeating any of it."""
    digests: dict[bytes, TenantId] = {}
    faults: list[Fault] = []
    for number, entry in enumerate(text.split(","), start=1):
        tenant, equals, value = entry.strip().partition("=")
        wrong, digest = "", b""
        if not entry.strip():
            wrong = "is empty"
        elif not equals:
            wrong = "is not tenant=key or tenant=sha256:<64 hex digits>"
        else:
            try:
                _tenant(tenant)
            except ValueError as error:
                wrong = str(error)
        if not wrong:
            hexed = value.removeprefix("sha256:")
            if hexed == value:
                wrong, digest = _unusable(value), sha256(value.encode()).digest()
            elif _DIGEST.fullmatch(hexed) is None:
                wrong = "is not a SHA-256 digest: 64 hex digits"
            else:
                digest = bytes.fromhex(hexed)
        if not wrong and digest in digests:
            wrong = "is a key that is given before"
        if wrong:
            faults.append(Fault("HOMING_API_KEYS", None, f"entry {number} {wrong}"))
        else:
            digests[digest] = TenantId(tenant)
    return (None, faults) if faults else (AccessKeys(digests.items()), [])


def _unusable(secret: str) -> str:
    """Why no client could send this in a header; "" where it could."""
    if not secret:
        return "is empty"
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        return "has a space, a control character or a letter outside ASCII"
    return ""


def _unfit(secret: str) -> str:
    """Why a text that never leaves the router cannot be its secret; "" where it can: any sentence will do."""
    if not secret:
        return "is empty"
    return "" if secret.isprintable() else "has a control character, or spreads over several lines"


def parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    """`name=value` a line, or several with commas between → names and values, for a text in which
    `_no_headers` finds no fault."""
    entries = (entry.partition("=") for entry in re.split(r"[,\n]", text) if entry.strip())
    return tuple((name.strip().lower(), value.strip()) for name, _, value in entries)


def _no_headers(text: str) -> str:
    """Why a text does not say what headers to send, without repeating any of it; "" where it does."""
    if not text:
        return "is empty"
    for number, entry in enumerate(re.split(r"[,\n]", text), start=1):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not entry.strip():
            continue
        if not equals or _HEADER.fullmatch(name) is None:
            return f"has an entry, number {number}, that is not name=value"
        if not value.isascii() or not value.isprintable():
            return f"has an entry, number {number}, with a control character or a letter outside ASCII"
        if name.lower() in _NOT_TO_SET:
            return f"has an entry, number {number}, for a header that is the router's to say"
    return ""
