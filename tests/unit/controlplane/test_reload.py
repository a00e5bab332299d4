"""Putting settings in force: checked, compared, swapped whole; what is refused changes nothing."""

import asyncio
import logging
from pathlib import Path

import pytest

from router.base.clock import ManualClock
from router.base.errors import SettingsError
from router.controlplane.reload import Outcome, Reloader
from router.settings.compare import Settings
from router.settings.credentials import load_secrets
from router.settings.load import load_config

CONFIG = """\
version: 1
policies: [home]
replicas: [{name: a, url: "http://a:8000"}]
"""
RING = "version: 1\npolicy: mine\nstrategy: ring\n"


class Router:
    """Settings in a file, and what was applied of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "router.yaml"
        self.applied: list[Settings] = []
        self.fails: Exception | None = None
        self.codes: list[frozenset[str]] = []
        self.write(CONFIG)
        self.clock = ManualClock(50.0)
        self.reloader = Reloader(self.read(), self.read, self.apply, self.clock)

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def read(self, code: object = None) -> Settings:
        self.codes.append(code)
        loaded = load_config(self.path, code)
        return Settings(loaded, load_secrets(loaded, {}))

    def apply(self, settings: Settings) -> None:
        if self.fails is not None:
            raise self.fails
        self.applied.append(settings)


@pytest.fixture
def router(tmp_path):
    return Router(tmp_path)


async def test_a_changed_file_is_swapped_whole_and_the_changes_are_told(router, caplog):
    caplog.set_level(logging.INFO)
    router.write(CONFIG.replace("http://a:8000", "http://a:9000") + "limits: {body: 1MiB}\n")
    done = await router.reloader.reload("SIGHUP")
    assert (done.outcome, done.cause, done.at, done.faults) == (Outcome.APPLIED, "SIGHUP", 50.0, ())
    assert done.changes == (
        "replicas[a].url: http://a:8000 → http://a:9000",
        "limits.body: 64MiB → 1MiB",
    )
    assert router.applied == [router.reloader.settings]
    assert router.applied[0].loaded.value.replicas[0].url == "http://a:9000"
    assert router.reloader.last is done
    assert "SIGHUP: in force, 2 changes" in caplog.text
    assert "limits.body: 64MiB → 1MiB" in caplog.text


async def test_a_file_that_says_the_same_changes_nothing(router):
    router.write("# another comment\n" + CONFIG)
    done = await router.reloader.reload("SIGHUP")
    assert (done.outcome, done.changes, router.applied) == (Outcome.UNCHANGED, (), [])


async def test_a_bad_file_changes_nothing_and_every_fault_is_told(router, caplog):
    before = router.reloader.settings
    router.write(CONFIG + "listem: x\nlimits: {body: 1MB, held: 3}\n")
    done = await router.reloader.reload("a file was replaced")
    assert done.outcome is Outcome.REFUSED
    assert [fault.split(":", 2)[1:] for fault in done.faults] == [
        ["4", " unknown key 'listem'; did you mean 'listen'?"],
        ["5", " limits: unknown key 'held'; did you mean 'head'?"],
    ]
    assert router.reloader.settings is before
    assert router.applied == []
    assert "a file was replaced: refused, the settings in force stay" in caplog.text
    assert all(fault in caplog.text for fault in done.faults)
    router.write(CONFIG)
    assert (await router.reloader.reload("SIGHUP")).outcome is Outcome.UNCHANGED


async def test_a_change_that_needs_a_restart_is_refused_with_all_that_came_with_it(router):
    router.write(CONFIG + "listen: 127.0.0.1:8081\nadmin: {listen: 127.0.0.1:9099}\nlimits: {body: 1MiB}\n")
    done = await router.reloader.reload("SIGHUP")
    assert done.outcome is Outcome.REFUSED
    assert [fault.split(":", 2)[2] for fault in done.faults] == [
        " listen: cannot change while the router runs; restart it",
        " admin: cannot change while the router runs; restart it",
    ]
    assert "limits.body: 64MiB → 1MiB" in done.changes
    assert router.applied == []


async def test_policies_are_put_and_stay_until_the_files_are_read_anew(router):
    done = await router.reloader.put_policies(RING.encode(), "PUT")
    assert done.outcome is Outcome.APPLIED
    assert "policies: home → mine" in done.changes
    [settings] = router.applied
    assert [policy.value.policy for policy in settings.loaded.policies] == ["mine"]
    assert settings.secrets is router.reloader.settings.secrets
    done = await router.reloader.reload("SIGHUP")
    assert "policies: mine → home" in done.changes


async def test_only_code_that_the_start_has_loaded_may_be_named(router, tmp_path):
    own = "tests_of_reload_never_imported:Mine"
    done = await router.reloader.put_policies(RING.replace("ring", own).encode(), "PUT")
    assert done.outcome is Outcome.REFUSED
    assert done.faults == (
        f"body:3: strategy: '{own}' is code that was not loaded at the start; name it in a file and restart",
    )
    (tmp_path / "own.yaml").write_text(RING.replace("ring", own))
    router.write(CONFIG.replace("home", "own.yaml"))
    done = await router.reloader.reload("SIGHUP")
    assert "code that was not loaded at the start" in done.faults[0]
    assert router.codes[-1] == frozenset({"priced"})


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (SettingsError(["a.yaml:1: no"]), "a.yaml:1: no"),
        (ZeroDivisionError("oops"), "the router failed to take them up: ZeroDivisionError: oops"),
    ],
)
async def test_what_cannot_be_applied_is_refused(router, error, fault):
    before = router.reloader.settings
    router.fails = error
    done = await router.reloader.put_policies(RING.encode(), "PUT")
    assert (done.outcome, done.faults) == (Outcome.REFUSED, (fault,))
    assert router.reloader.settings is before


async def test_attempts_wait_for_one_another(router):
    names = ["one", "two", "three"]
    texts = [RING.replace("mine", name).encode() for name in names]
    done = await asyncio.gather(*(router.reloader.put_policies(text, "PUT") for text in texts))
    assert [reload.changes[0] for reload in done] == [
        "policies: home → one",
        "policies: one → two",
        "policies: two → three",
    ]


async def test_attempts_are_counted_and_the_last_shows_until_the_next(router):
    assert (router.reloader.tally(), router.reloader.refused) == (
        {"applied": 0, "unchanged": 0, "refused": 0},
        False,
    )
    await router.reloader.put_policies(b"", "PUT")
    assert router.reloader.refused
    await router.reloader.reload("SIGHUP")
    assert not router.reloader.refused
    assert router.reloader.tally() == {"applied": 0, "unchanged": 1, "refused": 1}


async def test_what_was_read_last_stays_what_is_watched_while_other_policies_are_put(router):
    read = router.reloader.as_read
    assert (await router.reloader.put_policies(RING.encode(), "PUT")).outcome is Outcome.APPLIED
    assert router.reloader.as_read is read
    assert router.reloader.settings is not read
    router.write(CONFIG + "nonsense: 1\n")
    assert (await router.reloader.reload("SIGHUP")).outcome is Outcome.REFUSED
    assert router.reloader.as_read is read
    router.write(CONFIG)
    await router.reloader.reload("SIGHUP")
    assert router.reloader.as_read is router.reloader.settings
