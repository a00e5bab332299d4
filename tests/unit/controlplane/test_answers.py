import asyncio

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from router.controlplane import answers
from router.controlplane.answers import Problem, decode, json_answer, proper_answers, read_body, read_limit


class Form(msgspec.Struct, forbid_unknown_fields=True):
    on: bool


async def answer_to(
    method: str, path: str, body: object = None
) -> tuple[int, dict[str, str], dict[str, object]]:
    """The answer of an application with one endpoint of each sort."""

    async def good(request: web.Request) -> web.Response:
        return json_answer({"nan": float("nan")})

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request))

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPUnsupportedMediaType

    async def barred(request: web.Request) -> web.Response:
        raise Problem(401, "token_required", "send a token")

    async def broken(request: web.Request) -> web.Response:
        raise RuntimeError("inner secret")

    app = web.Application(middlewares=[proper_answers], client_max_size=100)
    app.router.add_get("/good", good)
    app.router.add_post("/echo", echo)
    app.router.add_get("/media", moved)
    app.router.add_get("/barred", barred)
    app.router.add_get("/broken", broken)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
        async with aiohttp.ClientSession() as http, http.request(method, url, data=body) as answer:
            return answer.status, dict(answer.headers), await answer.json()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("path", ["/good", "/nowhere", "/media", "/barred", "/broken", "/echo"])
async def test_every_answer_carries_the_security_headers(path: str) -> None:
    _, headers, _ = await answer_to("GET", path)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "homing"


async def test_a_figure_that_json_has_no_word_for_is_null() -> None:
    assert (await answer_to("GET", "/good"))[2] == {"nan": None}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/%ff%00", 404, "not_found"),
        ("POST", "/good", 405, "method_not_allowed"),
        ("GET", "/media", 415, "bad_request"),
        ("GET", "/barred", 401, "token_required"),
        ("GET", "/broken", 500, "internal"),
    ],
)
async def test_every_error_is_json_with_a_code_and_words(
    method: str, path: str, status: int, code: str
) -> None:
    got, headers, answer = await answer_to(method, path)
    assert got == status
    assert headers["Content-Type"] == "application/json"
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]
    assert "inner secret" not in str(answer)


async def test_a_refusal_for_want_of_a_token_says_how_to_send_one() -> None:
    assert (await answer_to("GET", "/barred"))[1]["WWW-Authenticate"].startswith("Bearer")


async def test_a_wrong_method_is_told_the_right_ones() -> None:
    _, headers, answer = await answer_to("DELETE", "/echo")
    assert headers["Allow"] == "POST"
    assert answer["error"]["message"] == "'/echo' takes POST, not DELETE"


async def test_a_body_too_large_is_refused() -> None:
    status, _, answer = await answer_to("POST", "/echo", b"x" * 101)
    assert (status, answer["error"]["code"]) == (413, "body_too_large")


async def test_a_body_that_does_not_arrive_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_BODY_TIMEOUT_S", 0.05)
    never = asyncio.Event()

    async def stuck():  # type: ignore[no-untyped-def]
        yield b"x"
        await never.wait()

    status, _, answer = await answer_to("POST", "/echo", stuck())
    assert (status, answer["error"]["code"]) == (408, "body_timeout")


def test_a_body_is_decoded_into_its_form() -> None:
    assert decode(b'{"on": true}', Form).on is True


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"on": 1}', b'{"on": true, "x": 1}', b"\xff", b"[" * 100_000]
)
def test_a_body_of_another_form_is_a_problem_in_words(body: bytes) -> None:
    with pytest.raises(Problem, match="the body is not the JSON that this call takes") as caught:
        decode(body, Form)
    assert (caught.value.status, caught.value.code) == (400, "bad_request")


@pytest.mark.parametrize(
    ("query", "limit"), [("", 100), ("?limit=1", 1), ("?limit=10000", 10000), ("?limit=007", 7)]
)
def test_a_limit_is_read(query: str, limit: int) -> None:
    assert read_limit(make_mocked_request("GET", "/x" + query)) == limit


@pytest.mark.parametrize("text", ["0", "-1", "10001", "1.5", "ten", "", "%D9%A3", "9" * 5000, "1_0"])
def test_a_limit_that_is_no_such_number_is_a_problem(text: str) -> None:
    with pytest.raises(Problem, match="whole number from 1 to 10000"):
        read_limit(make_mocked_request("GET", f"/x?limit={text}"))
