"""Replicas in a file that somebody else writes."""

from support.plane import until
from support.sources import watched

from router.controlplane.file_source import FileSource
from router.controlplane.sources import read_listed

ONE = 'version: 1\nreplicas: [{name: a, url: "http://a:1"}]\n'
TWO = 'version: 1\nreplicas: [{name: a, url: "http://a:1"}, {name: b, url: "http://b:1", api_key_env: KEY}]\n'


def source(path, environ=None):
    return FileSource(path, lambda at: read_listed(at, environ or {}), every_s=0.005)


async def test_a_file_is_read_and_read_anew_when_it_is_replaced(tmp_path):
    path = tmp_path / "replicas.yaml"
    path.write_text(ONE)
    async with watched(source(path, {"KEY": "k"})) as told:
        await until(lambda: told.replicas == {"a": "http://a:1"})
        path.write_text(TWO)
        await until(lambda: told.replicas == {"a": "http://a:1", "b": "http://b:1"})
        path.write_text("version: 1\nreplicas: []\n")
        await until(lambda: told.replicas == {})
    assert told.faults == []


async def test_a_file_with_faults_names_them_all_and_a_good_one_is_taken_afterwards(tmp_path):
    path = tmp_path / "replicas.yaml"
    path.write_text('version: 1\nreplicas: [{name: a, url: "ftp://a"}, {name: b}]\n')
    async with watched(source(path)) as told:
        await until(lambda: told.faults)
        assert "replicas.yaml:2: replicas[0].url" in told.faults[0]
        assert "replicas[1]" in told.faults[0]
        path.write_text(TWO)
        await until(lambda: len(told.faults) > 1)
        assert told.faults[1].endswith("the environment has no KEY")
        path.write_text(ONE)
        await until(lambda: told.replicas is not None)


async def test_a_file_may_come_and_go(tmp_path):
    path = tmp_path / "replicas.yaml"
    async with watched(source(path)) as told:
        await until(lambda: told.faults)
        assert "cannot be read: No such file" in told.faults[0]
        path.write_text(ONE)
        await until(lambda: told.replicas == {"a": "http://a:1"})
        path.unlink()
        await until(lambda: len(told.faults) == 2)
    assert told.replicas == {"a": "http://a:1"}


async def test_a_key_that_a_replica_names_is_read_anew_when_it_is_replaced_or_comes_late(tmp_path):
    path, key = tmp_path / "replicas.yaml", tmp_path / "key"
    path.write_text('version: 1\nreplicas: [{name: a, url: "http://a:1", api_key_file: key}]\n')
    async with watched(source(path)) as told:
        await until(lambda: told.faults)
        assert told.faults[0].endswith("replicas[0].api_key_file: no file 'key'")
        key.write_text("first")
        await until(lambda: told.keys == {"a": "first"})
        key.write_text("another")
        await until(lambda: told.keys == {"a": "another"})
        key.unlink()
        count = len(told.faults)
        await until(lambda: len(told.faults) > count)
    assert told.keys == {"a": "another"}
