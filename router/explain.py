"""`homing explain`: the decision that a request would get, from a running router or from a fresh one."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from router.base.errors import HomingError
from router.base.system import system_words
from router.settings.credentials import load_secrets
from router.settings.load import load_config
from router.wiring import Router

_TIMEOUT_S: Final = 10.0

_TERMS: Final = ("wait", "fetch", "compute", "crowd", "displacement", "move", "residue", "risk", "price")


def ask_admin(
    url: str, body: bytes, *, path: str, session: str | None, tenant: str | None, token: str | None
) -> dict[str, Any]:
    """Ask a running router. Raises `HomingError` with its reason if it refuses or cannot be reached."""
    try:
        # The body stands in the question as it is: what is explained is what would be sent.
        content = _question(body, path=path, session=session, tenant=tenant)
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        address = url if "://" in url else f"http://{url}"
        answer = httpx.post(
            f"{address.rstrip('/')}/api/explain", content=content, headers=headers, timeout=_TIMEOUT_S
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise HomingError(f"no answer from the admin port at {url}: {_reason(error)}") from error
    try:
        explained = orjson.loads(answer.content)
    except orjson.JSONDecodeError as error:
        raise HomingError(f"{url} answered {answer.status_code} and no JSON: is it an admin port?") from error
    if answer.status_code == 200 and isinstance(explained, dict) and "replica" in explained:
        return explained
    match explained:
        case {"error": {"message": str(why)}}:
            raise HomingError(why)
    raise HomingError(f"{url} answered {answer.status_code}, and not as an admin port does: is it one?")


def _reason(error: BaseException) -> str:
    """In the system's words where it is the system that refused: httpx wraps it some layers deep."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return system_words(cause if cause is not None else error)


async def explain_here(
    config: Path, body: bytes, *, path: str, session: str | None, tenant: str | None
) -> Mapping[str, object]:
    """Build the config's router, look at its replicas once, and ask it. Listens nowhere."""
    loaded = load_config(config)
    router = Router(loaded, load_secrets(loaded, os.environ))
    try:
        await router.probe_once()
        return router.questions.explain(path, body, session, tenant)
    finally:
        await router.close()


def render(answer: Mapping[str, Any]) -> str:
    """The bill as a table for a terminal."""
    lines = [
        f"{answer['replica']}  {answer['kind']}: {answer['reason']}  (policy {answer['policy']})",
        f"prompt about {answer['prompt_tokens']} tokens in {answer['segments']} segments,"
        f" {answer['predicted_cached_tokens']} expected in cache;"
        f" session {answer['session'] or 'none'}"
        + (f" {_source(answer['session_source'])}" if answer["session_source"] else "")
        + (f", home {answer['home']}" if answer["home"] else ""),
    ]
    if broken := answer.get("break"):
        lines.append(
            f"does not go on from the turn before: {broken['why']} ({broken['lost_tokens']} tokens lost)"
        )
    lines.append("")
    header = ("", "replica", "cached", "in flight", "pending", "working set", "capacity", "price", "over")
    rows = [
        (
            "→" if line["replica"] == answer["replica"] else "",
            line["replica"],
            str(line["cached_tokens"]),
            str(line["in_flight"]),
            str(line["pending_tokens"]),
            str(line["working_set_tokens"]),
            _or_dash(line["capacity_tokens"]),
            _or_dash(line["price"]),
            line["over"] or "",
        )
        for line in answer["candidates"]
    ]
    lines.append(table(header, rows))
    if answer["options"] is not None:
        lines += ["", "the bill, in ms: each way to have the turn, and what it adds up to"]
        lines.append(_bill(answer["options"], answer))
    return "\n".join(lines)


def _bill(options: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]) -> str:
    """The priced options, the chosen one marked."""
    taken = answer["pull"]["source"] if answer["pull"] is not None else None
    rows = [
        (
            "→" if option["replica"] == answer["replica"] and option["source"] == taken else "",
            option["replica"],
            f"pull {option['pulled_tokens']} from {option['source']}" if option["source"] else option["way"],
            *(f"{option[f'{term}_ms']:.1f}" for term in _TERMS),
        )
        for option in options
    ]
    return table(("", "replica", "way", *_TERMS), rows)


def _source(source: str) -> str:
    return "derived from the conversation's opening" if source == "derived" else f"from {source}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; figures to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    numeric = [all(_is_figure(row[column]) for row in rows) and bool(rows) for column in range(len(header))]
    text = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _is_figure(cell: str) -> bool:
    return cell in ("", "–") or cell[0].isdigit()


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.15g}"


def _question(body: bytes, *, path: str, session: str | None, tenant: str | None) -> bytes:
    fields = {"path": path, "session": session, "tenant": tenant}
    head = orjson.dumps({name: value for name, value in fields.items() if value is not None})
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HomingError(f"the body is not JSON: {error}") from error
    return head[:-1] + b',"body":' + body.strip() + b"}"
