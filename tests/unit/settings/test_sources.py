"""The files that settings were read from."""

from pathlib import Path

from router.settings.flags import config_from_flags
from router.settings.load import load_config
from router.settings.locate import shipped_policies
from router.settings.sources import files_of


def test_all_files_are_named_once_and_those_that_are_not_there_are_left_out(tmp_path):
    for name in ("keys.yaml", "key-a", "ca.pem", "secret"):
        (tmp_path / name).write_text("x")
    own = tmp_path / "own.yaml"
    own.write_text("version: 1\npolicy: own\nstrategy: ring\n")
    path = tmp_path / "router.yaml"
    path.write_text(
        "version: 1\npolicies: [own.yaml, home]\nshadow: ring\n"
        "replicas:\n"
        "  - {name: a, url: 'https://a', api_key_file: key-a, ca: ca.pem}\n"
        "  - {name: b, url: 'https://b', api_key_file: key-a, ca: ca.pem}\n"
        "access: {keys_file: keys.yaml, secret_file: secret}\n"
        "admin: {token_file: not-there}\n"
    )
    assert files_of(load_config(path)) == (
        path,
        own,
        shipped_policies()["home"],
        shipped_policies()["ring"],
        *(tmp_path / name for name in ("keys.yaml", "secret", "ca.pem", "key-a")),
    )


def test_flags_alone_come_from_the_policy_only():
    assert files_of(config_from_flags(["http://a"])) == (Path(shipped_policies()["home"]),)
