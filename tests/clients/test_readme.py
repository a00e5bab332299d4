"""The example in the README runs as it stands, but for the address."""

import asyncio

import pytest
from support.fleet import fleet
from support.pages import blocks

pytestmark = pytest.mark.clients


async def test_the_openai_example_streams_an_answer_and_its_session_has_a_home(capsys):
    (example,) = [block.text for block in blocks("python") if "from openai import" in block.text]
    async with fleet() as running:
        code = example.replace("http://127.0.0.1:8080/v1", running.openai_url)
        assert code != example
        names: dict[str, object] = {}

        def run() -> None:
            exec(code, names)
            names["client"].close()  # type: ignore[attr-defined] # the example's OpenAI client

        await asyncio.to_thread(run)
        await asyncio.to_thread(run)
        sessions = running.router.engine.sessions(10)
        assert [(session.source, session.turns) for session in sessions] == [("x-session-id", 2)]
        decisions = running.router.recording.recent.newest(10)
        assert [decision["kind"] for decision in decisions] == ["home", "new"]
    assert len(capsys.readouterr().out) > 20
