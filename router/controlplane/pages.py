"""The dashboard's files: read once, served from memory, by a table of what there is.

They hold nothing of the router's, so they are served without a token; what they show comes from the API,
which may want one.
"""

from importlib.resources import files
from typing import Final

from aiohttp import web

from router.controlplane.answers import Problem

POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The pages' Content-Security-Policy: no script but the files here, no text that becomes markup."""

_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

_INDEX: Final = "index.html"


class Pages:
    """All of them. Raises `OSError` where the installation lacks them."""

    def __init__(self) -> None:
        folder = files("router.controlplane").joinpath("dashboard")
        self._files = {
            each.name: each.read_bytes() for each in folder.iterdir() if _kind(each.name) in _TYPES
        }

    @property
    def paths(self) -> frozenset[str]:
        """The paths that they are served at."""
        return frozenset({"/", *(f"/ui/{name}" for name in self._files)})

    async def index(self, _request: web.Request) -> web.Response:
        """`GET /`."""
        return self._answer(_INDEX)

    async def file(self, request: web.Request) -> web.Response:
        """`GET /ui/{name}`."""
        return self._answer(request.match_info["name"])

    def _answer(self, name: str) -> web.Response:
        body = self._files.get(name)
        if body is None:
            raise Problem(404, "not_found", f"the dashboard has no file {name!r}; it begins at /")
        return web.Response(
            body=body,
            content_type=_TYPES[_kind(name)],
            charset="utf-8",
            headers={"Content-Security-Policy": POLICY},
        )


def _kind(name: str) -> str:
    return name.rpartition(".")[2]
