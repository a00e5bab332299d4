"""The cases in words: `docs/strictness.md`.

`PYTHONPATH=tests python -m support.strictness.page` writes it.
"""

from collections.abc import Iterable
from pathlib import Path

from support.strictness.cases import Case, Trouble
from support.strictness.refused import REFUSED
from support.strictness.served import SERVED
from support.strictness.trouble import TROUBLE

PAGE = Path(__file__).parents[3] / "docs" / "strictness.md"

_TEXT = """\
# Strictness

<!-- Written from tests/support/strictness/: PYTHONPATH=tests python -m support.strictness.page -->

Two parsers that read the same bytes in two ways let one request hide in another. So the router sends on no
head that it did not rebuild, and refuses what has more than one meaning. Each of the {count} lines is a test
on sockets, on both event loops (`tests/integration/test_strictness.py`); after each, nothing is left in
flight, held or running. Sizes are those of the default [limits](configuration.md).

`tests/property/test_h11_agreement.py` holds the request side against h11, another parser: what h11 refuses is
refused here, with the exceptions that the test names and gives reasons for; and where both accept, they agree
on method, target, headers and on where the body ends.

## Refused before any replica sees them

*Closed*: where the request ends is in doubt, or it was left unread, so the connection ends with the answer.
*Kept*: the request was whole, and the next one is served.

| Sent by a client | Status | Connection |
|---|---|---|
{refused}

## Served right

A replica gets each request once, in a head of the router's own and with one `Content-Length`.

| Sent by a client | Statuses, in order | Connection | Requests at the replica |
|---|---|---|---|
{served}

## Trouble with a replica

What the client gets, and whether the connection to the replica is used again. In every case the next turn is
answered with its own answer. Before the first byte of a body the turn would go to another replica; here
there is only one.

| Answered by a replica | Status | Body | Connection to the replica |
|---|---|---|---|
{trouble}
"""


def page() -> str:
    """The whole of `docs/strictness.md`."""
    return _TEXT.format(
        count=len(REFUSED) + len(SERVED) + len(TROUBLE),
        refused=_rows((case.name, _statuses(case), _connection(case)) for case in REFUSED),
        served=_rows(
            (case.name, _statuses(case), _connection(case), str(len(case.seen) or "none")) for case in SERVED
        ),
        trouble=_rows(
            (case.name, str(case.status), _body(case), "kept" if case.reused else "closed")
            for case in TROUBLE
        ),
    )


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _statuses(case: Case) -> str:
    answers = ", ".join(map(str, case.statuses)) or "none"
    return f"100, {answers}" if case.interim else answers


def _connection(case: Case) -> str:
    return "closed" if case.closed else "kept"


def _body(case: Trouble) -> str:
    if case.body is None:
        return "an error that names the replica"
    if case.error_event:
        return "what came, then an error event"
    if not case.whole:
        return "what came, then the connection ends"
    return "as it came" if case.body else "none"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
