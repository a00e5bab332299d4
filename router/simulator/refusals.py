"""Reading a body and refusing it: fields that are checked, and errors shaped as vLLM shapes them."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from router.base.errors import HomingError


class Refusal(HomingError):
    """An error that the client gets."""

    def __init__(self, status: int, message: str, *, kind: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or ("NotFoundError" if status == 404 else "BadRequestError")
        self.param = param


def read_object(raw: bytes) -> dict[str, Any]:
    """A body that must be a JSON object. Raises `Refusal`, as the two below."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"JSON decode error: {error}", kind="Bad Request") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", kind="Bad Request")
    return body


def whole_number(body: Mapping[str, Any], name: str) -> int | None:
    """A field that must be a number of at least 0; `None` where it is absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refusal(400, f"{name}: a whole number of at least 0 is needed", param=name)
    return value


def token_limit(body: Mapping[str, Any]) -> int | None:
    """The most tokens that the client wants, by whichever name its dialect has for it."""
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        value = whole_number(body, name)
        if value == 0:
            raise Refusal(400, f"{name} must be at least 1, got 0.", param=name)
        if value is not None:
            return value
    return None


def json_answer(answer: object, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(answer), status=status, content_type="application/json")


def error_answer(path: str, refusal: Refusal) -> web.Response:
    """An error in the dialect of `path`: Anthropic's for `/v1/messages`, OpenAI's for all else."""
    if path.startswith("/v1/messages"):
        kinds = {404: "not_found_error", 429: "rate_limit_error"}
        kind = "api_error" if refusal.status >= 500 else kinds.get(refusal.status, "invalid_request_error")
        error: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": refusal.message}}
    else:
        shown = {"message": refusal.message, "type": refusal.kind, "param": refusal.param}
        error = {"error": shown | {"code": refusal.status}}
    return json_answer(error, status=refusal.status)
