"""What an operator should know of settings as a whole."""

from pathlib import Path

import pytest

from router.settings.access import AccessKeys
from router.settings.advice import notices_of
from router.settings.config import RouterConfig
from router.settings.credentials import Secrets
from router.settings.document import Document
from router.settings.load import Loaded

KEYS = AccessKeys([(b"d" * 32, "acme")])
GATEWAY = {"kv": {"gateways": [{"name": "pool", "address": "10.0.0.9:9000"}]}}


def said(config: dict[str, object], secrets: Secrets, *notices: str) -> tuple[str, ...]:
    value = RouterConfig.model_validate({"version": 1, **config}, strict=False)
    return notices_of(Loaded(value, Document("router.yaml"), Path(), notices), secrets)


@pytest.mark.parametrize(
    ("config", "secrets", "words"),
    [
        ({}, Secrets(), ["no API keys are configured"]),
        ({}, Secrets(keys=KEYS, secret=b"s"), ["tenants are kept apart"]),
        ({}, Secrets(keys=KEYS), ["tenants are kept apart", "with a public constant"]),
        (
            {"access": {"tenant_header": "x-tenant"}},
            Secrets(),
            ["tenants are kept apart", "with a public constant"],
        ),
        (GATEWAY, Secrets(), ["no API keys", "nothing is pulled"]),
        (GATEWAY, Secrets(secret=b"s"), ["no API keys"]),
    ],
)
def test_what_goes_without_keys_or_a_secret_is_said(config, secrets, words) -> None:
    notices = said(config, secrets)
    assert len(notices) == len(words)
    assert all(word in notice for word, notice in zip(words, notices, strict=True))


def test_what_the_files_themselves_have_to_say_comes_first() -> None:
    assert said({}, Secrets(keys=KEYS, secret=b"s"), "router.yaml:3: x")[0] == "router.yaml:3: x"
