"""A small Kubernetes API server over HTTP: lists, watches and bookmarks pods and EndpointSlices, and forgets.

It keeps versions as the real one does: a watch begins after the version that it names, and is refused with
410 where that is older than what is remembered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
PODS = "/api/v1/namespaces/{namespace}/pods"
TOKEN = "the-token"


class ApiServer:
    """One cluster. `raw` lines go out on every watch as they are."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 0
        """Watches from before this are gone."""
        self.objects: dict[str, dict[str, dict[str, Any]]] = {"endpointslices": {}, "pods": {}}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.lists = 0
        self.watches = 0
        self.queries: list[dict[str, str]] = []
        self.list_status = 200
        self.list_body: bytes | None = None
        self.raw: list[bytes] = []
        self._changed = asyncio.Event()
        self._open: set[web.StreamResponse] = set()
        self.url = ""

    def put(self, kind: str, name: str, **content: Any) -> None:
        """Add an object or put another in its place."""
        event = "MODIFIED" if name in self.objects[kind] else "ADDED"
        self.version += 1
        metadata = {"name": name, "resourceVersion": str(self.version), **content.pop("metadata", {})}
        self.objects[kind][name] = {"metadata": metadata, **content}
        self._note(kind, event, self.objects[kind][name])

    def delete(self, kind: str, name: str) -> None:
        self.version += 1
        gone = self.objects[kind].pop(name)
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._note(kind, "DELETED", gone)

    def forget(self) -> None:
        """Remember nothing of what has been: every watch must list again."""
        self.version += 1
        self.history.clear()
        self.oldest = self.version

    def say(self, line: bytes) -> None:
        """One line on every watch."""
        self.raw.append(line)
        self._changed.set()

    async def hang_up(self) -> None:
        """End all watches as a server that restarts does."""
        for response in tuple(self._open):
            if response._req is not None and response._req.transport is not None:
                response._req.transport.abort()

    def _note(self, kind: str, event: str, content: dict[str, Any]) -> None:
        self.history.append((self.version, kind, event, content))
        self._changed.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        kind = request.path.rsplit("/", 1)[1]
        self.queries.append(dict(request.query))
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request, kind)
        self.lists += 1
        if self.list_status != 200:
            return web.json_response({"kind": "Status", "code": self.list_status}, status=self.list_status)
        if self.list_body is not None:
            return web.Response(body=self.list_body, content_type="application/json")
        content = {
            "metadata": {"resourceVersion": str(self.version)},
            "items": [*self.objects[kind].values()],
        }
        return web.json_response(content)

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        self.watches += 1
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._open.add(response)
        try:
            async with asyncio.timeout(int(request.query["timeoutSeconds"])):
                said = len(self.raw)
                while True:
                    self._changed = self._changed if not self._changed.is_set() else asyncio.Event()
                    changed = self._changed
                    if since < self.oldest:
                        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                        await self._send(response, "ERROR", status)
                        break
                    for version, of, event, content in tuple(self.history):
                        if of == kind and version > since:
                            await self._send(response, event, content)
                            since = version
                    for line in self.raw[said:]:
                        await response.write(line)
                    said = len(self.raw)
                    if since < self.version:
                        since = self.version
                        bookmark = {"kind": "X", "metadata": {"resourceVersion": str(since)}}
                        await self._send(response, "BOOKMARK", bookmark)
                    await changed.wait()
        except TimeoutError:
            pass
        finally:
            self._open.discard(response)
        return response

    async def _send(self, response: web.StreamResponse, event: str, content: dict[str, Any]) -> None:
        await response.write(json.dumps({"type": event, "object": content}).encode() + b"\n")

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                }
            )
        )
        return path


def endpoint(host: str, pod: str | None = None, **conditions: bool) -> dict[str, Any]:
    """One endpoint of a slice."""
    made: dict[str, Any] = {"addresses": [host], "conditions": {"ready": True, **conditions}}
    if pod is not None:
        made["targetRef"] = {"kind": "Pod", "name": pod}
    return made


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application()
    for path in (SLICES, PODS):
        app.router.add_get(path, server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
