"""The dashboard's files as they are served, and what they may do."""

import re
from importlib.resources import files

import pytest
from aiohttp.test_utils import make_mocked_request

from router.controlplane.answers import Problem
from router.controlplane.pages import POLICY, Pages

FOLDER = files("router.controlplane").joinpath("dashboard")
FILES = {each.name: each.read_text("utf-8") for each in FOLDER.iterdir() if each.is_file()}


async def served(name: str):
    request = make_mocked_request("GET", f"/ui/{name}", match_info={"name": name})
    return await Pages().file(request)


async def test_every_file_is_served_with_its_type_and_the_policy() -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    for name, text in FILES.items():
        answer = await served(name)
        assert answer.content_type == types[name.rpartition(".")[2]]
        assert answer.text == text
        assert answer.headers["Content-Security-Policy"] == POLICY
    assert (await Pages().index(make_mocked_request("GET", "/"))).text == FILES["index.html"]


@pytest.mark.parametrize("name", ["nothing.js", "../admin.py", "..", "", "index.html/", "%2e%2e"])
async def test_what_is_not_in_the_table_is_not_there(name: str) -> None:
    with pytest.raises(Problem) as raised:
        await served(name)
    assert raised.value.status == 404


def test_the_paths_are_those_of_the_files_and_the_root() -> None:
    assert Pages().paths == {"/", *(f"/ui/{name}" for name in FILES)}


def test_the_policy_allows_nothing_from_outside_and_nothing_inline() -> None:
    assert "default-src 'self'" in POLICY
    assert "require-trusted-types-for 'script'" in POLICY
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_no_file_names_anything_outside_of_the_router() -> None:
    for name, text in FILES.items():
        addresses = set(
            re.findall(r"(?:https?:)?//[\w.-]+", re.sub(r"^\s*//.*$|\s// .*$", "", text, flags=re.M))
        )
        assert addresses <= {"http://www.w3.org"}, name


def test_no_script_or_style_is_inline_and_no_text_becomes_markup() -> None:
    page = FILES["index.html"]
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert re.findall(r"\son\w+=|\sstyle=", page) == []
    for name, text in FILES.items():
        if name.endswith(".js"):
            for forbidden in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
            ):
                assert forbidden not in text, (name, forbidden)


def test_everything_that_a_file_refers_to_is_there() -> None:
    for name, text in FILES.items():
        for referred in re.findall(r"(?:from|import) \"\./([\w.-]+)\"", text):
            assert referred in FILES, (name, referred)
        for referred in re.findall(r"\"/ui/([\w.-]+)\"", text):
            assert referred in FILES, (name, referred)
