"""The README and the pages of docs/, in pieces: fenced blocks, tables, links."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TREE = Path(__file__).parents[2]

PAGES = (TREE / "README.md", *sorted((TREE / "docs").rglob("*.md")))


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    @property
    def place(self) -> str:
        """For the name of a test: page and first line."""
        return f"{self.page.relative_to(TREE)}: {self.text.splitlines()[0]}"


def blocks(language: str) -> list[Block]:
    """The blocks in one language, of all pages."""
    return [
        Block(page, language, text)
        for page in PAGES
        for text in re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]


def table(page: str, first_column: str) -> list[list[str]]:
    """The rows of every table of a page whose first column is headed so, each as its cells' text."""
    rows: list[list[str]] = []
    inside = False
    for line in (TREE / page).read_text().splitlines():
        cells = _cells(line)
        if not cells:
            inside = False
        elif cells[0] == first_column:
            inside = True
        elif inside and set("".join(cells)) != {"-"}:
            rows.append(cells)
    assert rows, f"{page} has no table of {first_column}"
    return rows


def code(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The ids that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    """Where the links of a page lead, those to other sites left out."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            yield target


def _cells(line: str) -> list[str]:
    if not line.startswith("|"):
        return []
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
