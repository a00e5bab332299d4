"""How the admin port answers: JSON, safe headers, and errors that say what to do. Knows no endpoint."""

import asyncio
import logging
from typing import Final, TypeVar

import msgspec
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

_log = logging.getLogger(__name__)

_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 10_000

_BODY_TIMEOUT_S: Final = 30.0

_SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Server": "homing",
}


class Problem(Exception):
    """An answer that says what is wrong with the request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@web.middleware
async def proper_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every answer carries the security headers, every error is JSON that says what to do."""
    try:
        response = await handler(request)
    except Problem as problem:
        response = _error(problem.status, problem.code, problem.message)
        if problem.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="homing admin"'
    except web.HTTPRequestEntityTooLarge as error:
        response = _error(413, "body_too_large", f"the body is too large: {error.text}")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _error(
            405, "method_not_allowed", f"{request.path!r} takes {allowed}, not {request.method}"
        )
        response.headers["Allow"] = allowed
    except web.HTTPNotFound:
        response = _error(404, "not_found", f"there is no {request.path!r} here; / lists what there is")
    except web.HTTPException as error:
        response = _error(error.status, "bad_request", error.reason)
    except TimeoutError:
        response = _error(408, "body_timeout", f"the body did not arrive within {_BODY_TIMEOUT_S:g} s")
    except Exception:  # noqa: BLE001 - the last stop: logged here, told to the caller without its inside
        _log.exception("admin API: %s %s failed", request.method, request.path)
        response = _error(500, "internal", "the router failed to answer; its log says why")
    for name, value in _SECURITY_HEADERS.items():
        # A page's own policy says what it may load.
        response.headers.setdefault(name, value)
    return response


def json_answer(content: object, *, status: int = 200) -> web.Response:
    """`content` as JSON; figures that JSON has no word for (`nan`, `inf`) become null."""
    return web.Response(body=orjson.dumps(content) + b"\n", status=status, content_type="application/json")


def _error(status: int, code: str, message: str) -> web.Response:
    return json_answer({"error": {"message": message, "type": "admin_error", "code": code}}, status=status)


async def read_body(request: web.Request) -> bytes:
    """All of the body, unless it is too large or too slow."""
    async with asyncio.timeout(_BODY_TIMEOUT_S):
        return await request.read()


_Form = TypeVar("_Form")


def decode(body: bytes, form: type[_Form]) -> _Form:
    """The body as a `msgspec` struct. Raises `Problem`, naming the field."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Problem(400, "bad_request", f"the body is not the JSON that this call takes: {error}") from None


def read_limit(request: web.Request) -> int:
    """How many rows `?limit=` asks for. Raises `Problem`."""
    return read_number(request, "limit", _DEFAULT_LIMIT, least=1, most=_MAX_LIMIT)


def read_number(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    """A whole number of the query. Raises `Problem`."""
    text = request.query.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most:
        return int(text)
    raise Problem(400, f"bad_{name}", f"`{name}` is a whole number from {least} to {most}, not {text!r}")
