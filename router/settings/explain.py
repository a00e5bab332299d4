"""Says what pydantic found wrong in the words of the file: line, key, nearest valid name.

Knows pydantic's errors and a document's lines; knows nothing of what the keys mean.
"""

import difflib
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.settings.document import Document, Fault, Loc

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
}


def explain(error: ValidationError, document: Document, shape: type, under: Loc = ()) -> list[Fault]:
    """The faults that `error` stands for. `shape` is the model or dataclass checked, `under` its place."""
    faults = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "too_short" and detail["input"]:
            # Pydantic counts the good items. A list whose items are all at fault is not empty.
            continue
        loc = (*under, *detail["loc"])
        faults.append(document.fault(loc, _what(detail, document, shape, under)))
    return faults


def nearest(word: str, names: Iterable[str]) -> str:
    """`; did you mean 'replicas'?`, or, where nothing is near, what there is to choose from."""
    known = sorted(names)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there is {', '.join(known)}" if known else "; there is none"


def dotted(loc: Loc) -> str:
    """`replicas[0].url`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _what(detail: ErrorDetails, document: Document, shape: type, under: Loc) -> str:
    kind, loc = detail["type"], detail["loc"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        inside = (*under, *loc[:-1])
        known = _names(_shape_at(shape, loc[:-1]))
        if document.secret:
            # A key written in the wrong place may be the secret itself.
            return _at(inside, f"unknown key; there is {', '.join(sorted(known))}")
        return _at(inside, f"unknown key '{loc[-1]}'{nearest(str(loc[-1]), known)}")
    if kind in ("missing", "missing_argument"):
        inside = (*under, *loc[:-1])
        example = "; write 'version: 1'" if loc == ("version",) else ""
        return _at(inside, f"'{loc[-1]}' is missing{example}")
    # Pydantic's own marks in a location, for branches of a union say, are no keys of the file.
    return _at(document.known((*under, *loc)), _wrong(detail, secret=document.secret))


def _wrong(detail: ErrorDetails, *, secret: bool) -> str:
    kind, ctx, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind == "value_error":
        return str(ctx["error"])
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in ctx["expected"].replace(" or ", ", ").split(", ")]
        if len(choices) == 1:
            return f"must be {choices[0]}" + ("" if secret else f", not '{_written(value)}'")
        if secret:
            return f"is none of {', '.join(choices)}"
        return f"'{_written(value)}' is none of {', '.join(choices)}" + _near(str(value), choices)
    if kind in _EXPECTED:
        if kind in ("int_type", "float_type") and not secret and _is_huge(value):
            return f"'{value}' is too large"
        if secret:
            return f"expected {_EXPECTED[kind]}; put it in quotes if it looks like something else"
        quote = f'; write "{_written(value)}"' if kind == "string_type" and _is_scalar(value) else ""
        return f"expected {_EXPECTED[kind]}, found {_described(value)}{quote}"
    if kind == "too_short":
        return "must not be empty"
    message = detail["msg"].removeprefix("Input ")
    return message[:1].lower() + message[1:]


def _is_huge(value: object) -> bool:
    """Whether a text is a number of so many digits that no key takes it, which is why it was left a text."""
    if not isinstance(value, str) or re.fullmatch(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", value) is None:
        return False
    return abs(float(value)) > 1e15


def _near(word: str, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def _described(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else f"'{_written(value)}'"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _at(loc: Loc, what: str) -> str:
    return f"{dotted(loc)}: {what}" if loc else what


def _shape_at(shape: type, loc: Loc) -> type:
    """The model that describes the mapping at `loc`. Parts that name no field lead no deeper."""
    for part in loc:
        if isinstance(part, str) and issubclass(shape, BaseModel) and part in shape.model_fields:
            shape = next(_models_in(shape.model_fields[part].annotation), shape)
    return shape


def _models_in(annotation: object) -> Iterator[type]:
    """The models inside `Model | None`, `tuple[Model, ...]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _names(shape: type) -> list[str]:
    if issubclass(shape, BaseModel):
        return list(shape.model_fields)
    assert is_dataclass(shape)
    return [field.name for field in dataclass_fields(shape)]
