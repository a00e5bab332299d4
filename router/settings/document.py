"""A YAML file as plain values that remember their lines. Knows nothing of what the keys mean.

Scalars follow the YAML 1.2 core rules, so that a replica called `no` or a header called `on` stays the
text that it is, and `1:30` is not ninety. Tags, duplicate keys and files that unfold to far more than
was written are refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

import yaml

Loc = tuple[str | int, ...]
"""Where a value lies: keys and indices from the root."""

MAX_BYTES: Final = 4 << 20
"""A config of a thousand replicas takes some 100 KB."""
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 200_000
"""Values after aliases are followed: ten lines of nested aliases can stand for a billion."""


class Fault(NamedTuple):
    """Something that must be mended, and where."""

    where: str
    """The file as the user knows it, or the flag or environment variable."""
    line: int | None
    """From 1; `None` where the place has no lines."""
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.line is None else f"{self.where}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says. `faults` are those of its form; whoever knows the keys adds more."""

    shown: str
    value: object = None
    """Mappings, lists, text, numbers, true/false and `None`; `None` also where nothing could be read."""
    lines: Mapping[Loc, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    secret: bool = False
    """Its contents must not be repeated in a message."""
    path: Path | None = None
    """The file that was read; `None` where the text came from elsewhere."""

    def line_of(self, loc: Loc) -> int:
        """The line of the value at `loc`, or of the nearest value around it."""
        return self.lines.get(self.known(loc), 1)

    def known(self, loc: Loc) -> Loc:
        """`loc` cut back to what the file really contains."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return loc

    def fault(self, loc: Loc, what: str) -> Fault:
        return Fault(self.shown, self.line_of(loc), what)

    def at(self, *loc: str | int) -> object:
        """The value at `loc`; `None` where there is none."""
        value: object = self.value
        for part in loc:
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and isinstance(part, int) and part < len(value):
                value = value[part]
            else:
                return None
        return value


def read_document(path: Path, shown: str, *, secret: bool = False) -> Document:
    """Read and parse a file. Every failure is a fault of the document; nothing is raised."""
    return replace(_read(path, shown, secret=secret), path=path)


def _read(path: Path, shown: str, *, secret: bool) -> Document:
    if path.exists() and not (path.is_file() or path.is_dir()):
        # A pipe that nobody writes to would be waited for without end.
        return Document(shown, faults=(Fault(shown, None, "is not a regular file"),), secret=secret)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        what = f"cannot be read: {error.strerror or type(error).__name__}"
        return Document(shown, faults=(Fault(shown, None, what),), secret=secret)
    return parse_document(raw, shown, secret=secret)


def parse_document(raw: bytes, shown: str, *, secret: bool = False) -> Document:
    """Parse a file's bytes. With `secret`, no message repeats anything that the file says."""
    documents = parse_documents(raw, shown, secret=secret)
    if len(documents) == 1:
        return documents[0]
    second = documents[1].line_of(())
    fault = Fault(shown, second, "another document begins; a file holds one")
    return Document(shown, faults=(fault,), secret=secret)


def parse_documents(raw: bytes, shown: str, *, secret: bool = False) -> tuple[Document, ...]:
    """Parse bytes that may hold several documents, each begun by a line `---`: one at least is returned.

    A fault of the form of all is the one document's.
    """

    def faulty(line: int | None, what: str) -> tuple[Document, ...]:
        return (Document(shown, faults=(Fault(shown, line, what),), secret=secret),)

    if len(raw) > MAX_BYTES:
        return faulty(None, f"is larger than {MAX_BYTES >> 20} MiB, which no settings file needs to be")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return faulty(raw.count(b"\n", 0, error.start) + 1, "is not UTF-8 text")
    roots = []
    try:
        loader = _Loader(text)
        while loader.check_node():
            root = loader.get_node()
            assert root is not None, "check_node has said that there is one"
            roots.append(root)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return faulty(line, "holds a control character, which YAML does not allow")
    except yaml.MarkedYAMLError as error:
        return (Document(shown, faults=(_syntax_fault(error, shown, secret=secret),), secret=secret),)
    if not roots:
        return faulty(1, "the file is empty")
    return tuple(_unfolded(root, shown, secret=secret) for root in roots)


def _unfolded(root: yaml.Node, shown: str, *, secret: bool) -> Document:
    line = root.start_mark.line + 1
    if not isinstance(root, yaml.MappingNode):
        fault = Fault(shown, line, "the file is not a mapping of keys to values")
        return Document(shown, lines={(): line}, faults=(fault,), secret=secret)
    unfolding = _Unfolding(shown, secret=secret)
    value = unfolding.unfold(root, (), line)
    return Document(shown, value, unfolding.lines, tuple(unfolding.faults), secret)


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the core rules for plain scalars, and a bound on nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


_TAG: Final = "tag:yaml.org,2002:"
_Loader.yaml_implicit_resolvers = {}
# Bounded digits keep a long row of them, a digest for one, the text that it is.
_PLAIN: Final[Mapping[str, re.Pattern[str]]] = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"[-+]?[0-9]{1,18}\Z"),
    "float": re.compile(r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?\Z"),
}
for _name, _first in (
    ("null", ["~", "n", "N", ""]),
    ("bool", list("tTfF")),
    ("int", list("-+0123456789")),
    ("float", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, _PLAIN[_name], _first)


class _Unfolding:
    """Turns the node tree into plain values, keeping the line of each."""

    def __init__(self, shown: str, *, secret: bool) -> None:
        self._shown = shown
        self._secret = secret
        self._values = 0
        self._open: set[int] = set()
        self.lines: dict[Loc, int] = {}
        self.faults: list[Fault] = []

    def unfold(self, node: yaml.Node, loc: Loc, line: int) -> object:
        self.lines[loc] = line
        self._values += 1
        if self._values > MAX_VALUES:
            if self._values == MAX_VALUES + 1:
                self._add(node.start_mark.line + 1, f"the file unfolds to more than {MAX_VALUES} values")
            return None
        if id(node) in self._open:
            self._add(line, "an alias stands for something that contains it")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, loc)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
                return [
                    self.unfold(item, (*loc, index), item.start_mark.line + 1)
                    for index, item in enumerate(node.value)
                ]
        finally:
            self._open.discard(id(node))
        self._refuse_tag(node, line)
        return None

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, object]:
        mapping: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._add(line, "a key must be plain text")
                continue
            name = key.value
            if name in mapping:
                first = self.lines[(*loc, name)]
                called = "a key" if self._secret else f"'{name}'"
                self._add(line, f"{called} is already given on line {first}")
                continue
            mapping[name] = self.unfold(value, (*loc, name), line)
        return mapping

    def _scalar(self, node: yaml.ScalarNode, line: int) -> object:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" if _PLAIN["int"].fullmatch(text):
                return int(text)
            case "float" if _PLAIN["float"].fullmatch(text):
                return float(text)
        self._refuse_tag(node, line)
        return None

    def _refuse_tag(self, node: yaml.Node, line: int) -> None:
        tag = "" if self._secret else f" ({node.tag.replace(_TAG, '!!')})"
        self._add(line, f"YAML tags are not read here{tag}: write the plain value")

    def _add(self, line: int, what: str) -> None:
        self.faults.append(Fault(self._shown, line, what))


def _syntax_fault(error: yaml.MarkedYAMLError, shown: str, *, secret: bool) -> Fault:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or ""
    if secret:
        # The parser quotes what it stumbled over.
        what = "is not valid YAML"
    elif "'\\t'" in problem:
        what = "a tab where YAML wants spaces: indent with spaces"
    else:
        what = f"is not valid YAML: {problem}"
    return Fault(shown, None if mark is None else mark.line + 1, what)
