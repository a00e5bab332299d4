"""Secrets from files and the environment: found, refused when unusable, and never shown."""

import ssl
from hashlib import sha256
from pathlib import Path

import pytest
from support.certificates import Authority

from router.base.errors import SettingsError
from router.settings.credentials import load_secrets, parse_api_keys
from router.settings.load import load_config

DIGEST = sha256(b"hunter2").hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def secrets(config: str = "", environ: dict[str, str] | None = None, **files: str):
    for name, text in files.items():
        Path(name).write_text(text)
    Path("c.yaml").write_text("version: 1\n" + config)
    return load_secrets(load_config(Path("c.yaml")), environ or {})


def faults(config: str = "", environ: dict[str, str] | None = None, **files: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        secrets(config, environ, **files)
    assert "hunter2" not in str(caught.value)
    assert DIGEST not in str(caught.value)
    return caught.value.faults


def test_without_any_secret_the_router_is_open():
    found = secrets()
    assert (found.keys, found.secret, found.admin_token, found.replica_keys) == (None, None, None, {})


def test_secrets_come_from_files_beside_the_config():
    found = secrets(
        """\
admin: {listen: 0.0.0.0:9090, token_file: token}
access: {keys_file: keys, secret_file: secret}
replicas:
  - {name: a, url: http://a:1, api_key_file: key_a}
  - {name: b, url: http://b:1, api_key_env: KEY_B}
  - {name: c, url: http://c:1}
""",
        {"KEY_B": "for-b"},
        token="hunter2\n",
        secret="  s3cret \n",
        key_a="for-a\n",
        keys=f"version: 1\nkeys:\n  - {{tenant: acme, sha256: {DIGEST}}}\n  - {{tenant: beta, key: plain}}\n",
    )
    assert found.admin_token == "hunter2"
    assert found.secret == b"s3cret"
    assert found.replica_keys == {"a": "for-a", "b": "for-b"}
    assert found.keys is not None
    assert found.keys.tenant_of(b"hunter2") == "acme"
    assert found.keys.tenant_of(b"plain") == "beta"
    for shown in (repr(found), str(found)):
        for secret in ("hunter2", "s3cret", "for-a", "for-b", "plain", DIGEST):
            assert secret not in shown


def test_the_environment_takes_the_place_of_files_which_are_then_not_read():
    found = secrets(
        "admin: {token_file: nowhere}\naccess: {keys_file: nowhere, secret_file: nowhere}\n",
        {
            "HOMING_API_KEYS": f"acme=sha256:{DIGEST.upper()}, beta=plain",
            "HOMING_SECRET": "s",
            "HOMING_ADMIN_TOKEN": "t",
        },
    )
    assert found.keys is not None
    assert found.keys.tenant_of(b"hunter2") == "acme"
    assert found.keys.tenant_of(b"plain") == "beta"
    assert (found.secret, found.admin_token) == (b"s", "t")


@pytest.mark.parametrize("text", ["a long random text", "ein längerer Satz"])
def test_a_secret_may_be_a_sentence_and_is_the_same_from_a_file_as_from_the_environment(text):
    assert secrets("", {"HOMING_SECRET": f"{text}\n"}).secret == text.encode()
    assert secrets("access: {secret_file: secret}\n", secret=f" {text}\r\n").secret == text.encode()


@pytest.mark.parametrize("text", ["two\nlines", "nul\0", "\x1b[1mbold"])
def test_a_secret_with_a_control_character_is_refused(text):
    words = "has a control character, or spreads over several lines"
    assert faults("", {"HOMING_SECRET": text}) == [f"HOMING_SECRET: {words}"]
    assert faults("access: {secret_file: secret}\n", secret=text) == [
        f"c.yaml:2: access.secret_file: 'secret' {words}"
    ]


def test_a_token_goes_into_a_header_and_may_not_be_a_sentence():
    assert faults("", {"HOMING_ADMIN_TOKEN": "a long text"}) == [
        "HOMING_ADMIN_TOKEN: has a space, a control character or a letter outside ASCII"
    ]


def test_a_variable_that_is_set_and_empty_does_not_open_the_router():
    environ = {"HOMING_API_KEYS": "", "HOMING_SECRET": "", "HOMING_ADMIN_TOKEN": ""}
    assert faults("", environ) == [
        "HOMING_API_KEYS: entry 1 is empty",
        "HOMING_SECRET: is empty",
        "HOMING_ADMIN_TOKEN: is empty",
    ]


def test_an_admin_port_that_others_reach_needs_a_token():
    assert faults("admin: {listen: 0.0.0.0:9090}\n") == [
        "c.yaml:2: admin.listen: 0.0.0.0:9090 is reachable from other machines and needs a token: "
        "give admin.token_file or HOMING_ADMIN_TOKEN"
    ]
    assert secrets("admin: {listen: 0.0.0.0:9090}\n", {"HOMING_ADMIN_TOKEN": "t"}).admin_token == "t"


def test_every_missing_or_unusable_secret_is_reported_with_its_line():
    assert faults(
        """\
admin: {token_file: empty}
access:
  keys_file: nowhere
  secret_file: folder/..
replicas:
  - {name: a, url: http://a:1, api_key_file: spaced}
  - {name: b, url: http://b:1, api_key_env: NOT_SET}
  - {name: c, url: http://c:1, api_key_env: BROKEN}
""",
        {"BROKEN": "hunter2\r\nX-Evil: 1"},
        empty="\n",
        spaced="hunter2 hunter2",
    ) == [
        "c.yaml:4: access.keys_file: no file 'nowhere'",
        "c.yaml:5: access.secret_file: no file 'folder/..'",
        "c.yaml:8: replicas[1].api_key_env: the environment has no NOT_SET",
        "c.yaml:2: admin.token_file: 'empty' is empty",
        "c.yaml:7: replicas[0].api_key_file: 'spaced' "
        "has a space, a control character or a letter outside ASCII",
        "c.yaml:9: replicas[2].api_key_env: BROKEN "
        "has a space, a control character or a letter outside ASCII",
    ]


def test_a_secret_that_is_no_text_or_no_file_cannot_be_read():
    Path("binary").write_bytes(b"\xff\xfe")
    assert faults("admin: {token_file: binary}\naccess: {secret_file: .}\n") == [
        "c.yaml:3: access.secret_file: cannot read '.': Is a directory",
        "c.yaml:2: admin.token_file: cannot read 'binary': it is not UTF-8 text",
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("version: 1\nkeys: []\n", ["keys:2: keys: must not be empty"]),
        ("version: 1\n", ["keys:1: 'keys' is missing"]),
        ("version: hunter2\nkeys: [{tenant: a, key: k}]\n", ["keys:1: version: must be 1"]),
        (
            "version: 1\nkeys:\n  - {tenant: a}\n  - {tenant: b, key: hunter2, sha256: '0'}\n",
            [
                "keys:3: keys[0]: give either sha256 or key",
                "keys:4: keys[1].sha256: is not a SHA-256 digest: 64 hex digits",
            ],
        ),
        (
            "version: 1\nkeys:\n  - {tenant: hunter2 x, key: k}\n",
            [
                "keys:3: keys[0].tenant: is not a tenant's name: letters, digits and . _ : @ -, "
                "a letter or digit first"
            ],
        ),
        (
            "version: 1\nkeys:\n  - {tenant: a, hunter2}\n",
            ["keys:3: keys[0]: unknown key; there is key, sha256, tenant"],
        ),
        (
            "version: 1\nkeys:\n  - {tenant: a, key: 12345}\n",
            ["keys:3: keys[0].key: expected text; put it in quotes if it looks like something else"],
        ),
        (
            "version: 1\nkeys:\n  - {tenant: a, key: hunter2 }\n  - {tenant: b, key: 'hunter2 x'}\n",
            ["keys:4: keys[1]: key has a space, a control character or a letter outside ASCII"],
        ),
        (
            f"version: 1\nkeys:\n  - {{tenant: a, key: hunter2}}\n  - {{tenant: b, sha256: {DIGEST}}}\n",
            ["keys:4: keys[1]: the same key is given before"],
        ),
        ("version: 1\nkeys: [*hunter2]\n", ["keys:2: is not valid YAML"]),
    ],
)
def test_a_keys_file_at_fault_says_where_and_repeats_nothing(keys, expected):
    found = faults("access: {keys_file: keys}\n", keys=keys)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hunter2", "entry 1 is not tenant=key or tenant=sha256:<64 hex digits>"),
        (
            "a=ok,=hunter2",
            "entry 2 is not a tenant's name: letters, digits and . _ : @ -, a letter or digit first",
        ),
        ("a=ok,", "entry 2 is empty"),
        ("a=", "entry 1 is empty"),
        ("a=sha256:hunter2", "entry 1 is not a SHA-256 digest: 64 hex digits"),
        ("a=hunter2,b=hunter2", "entry 2 is a key that is given before"),
        ("a=hunter2 x", "entry 1 has a space, a control character or a letter outside ASCII"),
    ],
)
def test_a_fault_in_the_variable_says_which_entry_and_repeats_nothing(text, expected):
    keys, wrong = parse_api_keys(text)
    assert keys is None
    assert [str(fault) for fault in wrong] == [f"HOMING_API_KEYS: {expected}"]


def test_a_key_may_contain_an_equals_sign():
    keys, _ = parse_api_keys("acme=abc==")
    assert keys is not None
    assert keys.tenant_of(b"abc==") == "acme"


def test_certificates_come_from_files_beside_the_config(folder):
    authority = Authority(folder)
    authority.files("server")
    found = secrets("""\
tls: {cert: server.crt, key: server.key}
replicas:
  - {name: a, url: https://a, ca: ca.pem}
  - {name: b, url: https://b, ca: ca.pem}
  - {name: c, url: https://c}
  - {name: d, url: https://d, verify: false}
  - {name: e, url: http://e}
""")
    assert found.tls is not None
    assert found.tls.files.cert == Path("server.crt")
    contexts = found.replica_tls
    assert set(contexts) == {"a", "b", "c", "d"}
    assert contexts["a"] is contexts["b"], "one context for all that are trusted alike"
    assert len(contexts["a"].get_ca_certs()) == 1
    assert contexts["c"].check_hostname
    assert contexts["c"] is not contexts["a"]
    assert contexts["d"].verify_mode is ssl.CERT_NONE


def test_without_certificates_nobody_speaks_tls():
    found = secrets("replicas: [{name: a, url: http://a}]\n")
    assert (found.tls, found.replica_tls) == (None, {})


def test_every_certificate_at_fault_is_named_with_its_line(folder):
    authority = Authority(folder)
    authority.files("one")
    authority.files("two")
    assert faults(
        """\
tls:
  cert: one.crt
  key: two.key
replicas:
  - {name: a, url: https://a, ca: nowhere.pem}
  - {name: b, url: https://b,
     ca: bad.pem}
""",
        **{"bad.pem": "x"},
    ) == [
        "c.yaml:6: replicas[0].ca: no file 'nowhere.pem'",
        "c.yaml:3: tls: the key 'two.key' is not the key of the certificate 'one.crt'",
        "c.yaml:8: replicas[1].ca: 'bad.pem' holds no PEM certificate that can be used",
    ]
    assert faults("tls: {cert: one.crt,\n  key: gone.key}\n") == ["c.yaml:3: tls.key: no file 'gone.key'"]


OTLP = "telemetry: {otlp: 'http://c:4318', otlp_headers_file: headers}\n"


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("authorization=Bearer hunter2\n", (("authorization", "Bearer hunter2"),)),
        ("Api-Key = a=b== , x-org=7,\n\n", (("api-key", "a=b=="), ("x-org", "7"))),
        ("x-empty=", (("x-empty", ""),)),
    ],
)
def test_headers_for_a_collector_come_from_a_file_or_the_environment(text, headers):
    found = secrets(OTLP, headers=text)
    assert found.otlp_headers == headers
    assert "hunter2" not in repr(found)
    assert secrets(OTLP, {"HOMING_OTLP_HEADERS": text}).otlp_headers == headers


def test_without_a_collector_its_headers_are_not_asked_for():
    assert secrets(environ={"HOMING_OTLP_HEADERS": "no headers at all"}).otlp_headers == ()
    assert secrets("telemetry: {otlp: 'http://c:4318'}\n").otlp_headers == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ", "is empty"),
        ("hunter2", "has an entry, number 1, that is not name=value"),
        ("a=1,hun ter=hunter2", "has an entry, number 2, that is not name=value"),
        ("a=1\n=hunter2", "has an entry, number 2, that is not name=value"),
        ("a=hunter2\x00", "has an entry, number 1, with a control character or a letter outside ASCII"),
        ("a=hunter2ä", "has an entry, number 1, with a control character or a letter outside ASCII"),
        ("Content-Length=2", "has an entry, number 1, for a header that is the router's to say"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_and_not_shown(text, words):
    assert faults(OTLP, headers=text) == [f"c.yaml:2: telemetry.otlp_headers_file: 'headers' {words}"]
    assert faults(OTLP, {"HOMING_OTLP_HEADERS": text}) == [f"HOMING_OTLP_HEADERS: {words}"]


def test_a_collectors_authority_is_read(tmp_path):
    Authority(tmp_path)
    https = "telemetry: {otlp: 'https://c:4318', otlp_ca: ca.pem}\n"
    assert isinstance(secrets(https).otlp_tls, ssl.SSLContext)
    assert isinstance(secrets("telemetry: {otlp: 'https://c'}\n").otlp_tls, ssl.SSLContext)
    assert secrets("telemetry: {otlp: 'http://c'}\n").otlp_tls is None
    assert faults(https.replace("ca.pem", "nowhere.pem")) == [
        "c.yaml:2: telemetry.otlp_ca: no file 'nowhere.pem'"
    ]
    assert "holds no PEM certificate" in faults(https, **{"ca.pem": "hunter3"})[0]
