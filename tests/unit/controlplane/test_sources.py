"""From a config's `discovery` to sources."""

from pathlib import Path
from random import Random

import pytest

from router.controlplane.dns_source import DnsSource
from router.controlplane.file_source import FileSource
from router.controlplane.kubernetes_source import KubernetesSource
from router.controlplane.sources import build_sources, list_config, read_listed
from router.settings.compare import Settings
from router.settings.credentials import load_secrets
from router.settings.load import load_config


@pytest.fixture
def settings(tmp_path):
    def make(text: str, **environ: str) -> Settings:
        path = tmp_path / "router.yaml"
        path.write_text(f"version: 1\n{text}")
        loaded = load_config(path)
        return Settings(loaded, load_secrets(loaded, environ), environ)

    return make


def test_what_the_config_lists_comes_with_its_key(settings):
    made = settings('replicas: [{name: a, url: "http://a:1", kv_tokens: 9, api_key_env: K}]', K="key")
    [listed] = list_config(made.loaded.value, made.secrets)
    assert (listed.spec.id, listed.spec.url, listed.spec.kv_tokens) == ("a", "http://a:1", 9)
    assert (listed.api_key, listed.tls) == ("key", None)


def test_nothing_named_is_no_source(settings):
    assert build_sources(settings(""), Random(1), look_every_s=2.0) == {}


def test_each_kind_is_built_as_it_is_written(settings, tmp_path):
    made = settings(
        "discovery:\n"
        "  file: replicas.yaml\n"
        "  dns: {name: vllm.test, port: 8000, every: 3s, server: '127.0.0.1:53',"
        " scheme: https, api_key_env: K}\n"
        "  kubernetes: {namespace: models, pods: app=vllm, port: http, kubeconfig: kube, kv_tokens: 4}\n",
        K="key",
    )
    sources = build_sources(made, Random(1), look_every_s=2.0)
    assert [type(source) for source in sources.values()] == [FileSource, DnsSource, KubernetesSource]
    assert sources["file"]._path == tmp_path / "replicas.yaml"
    dns = sources["dns"]
    assert (dns._question.every_s, dns._question.server) == (3.0, ("127.0.0.1", 53))
    listed = dns._template.at("10.0.0.1", 8000)
    assert (listed.spec.url, listed.api_key, listed.tls is not None) == ("https://10.0.0.1:8000", "key", True)
    query = sources["kubernetes"]._query
    assert (query.namespace, query.pods, query.port) == ("models", "app=vllm", "http")
    assert query.kubeconfig == tmp_path / "kube"
    assert sources["kubernetes"]._template.at("a", 1).spec.kv_tokens == 4


def test_a_file_of_replicas_has_its_faults_with_their_lines(tmp_path):
    path = tmp_path / "replicas.yaml"
    path.write_text(
        'version: 1\nreplicas:\n  - {name: a, url: "http://a"}\n  - {name: a, url: "http://a:80"}\n'
    )
    reading = read_listed(path, {})
    assert (reading.listed, reading.named) == ((), [])
    assert [fault.rsplit("yaml", 1)[1] for fault in reading.faults] == [
        ":4: replicas[1].name: 'a' is already on line 3",
        ":4: replicas[1].url: 'http://a:80' is already on line 3",
    ]


def test_files_that_replicas_name_are_told_of_also_where_they_are_not_there(tmp_path):
    path = tmp_path / "replicas.yaml"
    path.write_text(
        'version: 1\nreplicas: [{name: a, url: "https://a", ca: ca.pem, api_key_file: /keys/a},'
        ' {name: b, url: "http://b"}]\n'
    )
    reading = read_listed(path, {})
    assert len(reading.faults) == 2
    assert {tmp_path / "ca.pem", Path("/keys/a")} <= set(reading.named)
