"""Pydantic's errors in the words of the file."""

from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from router.settings.document import parse_document
from router.settings.explain import dotted, explain, nearest
from router.settings.fields import Model


class Leaf(Model):
    height: int = 0
    width: float = 0.0
    tall: bool = False


class Tree(Model):
    kind: Literal["oak", "elm"] = "oak"
    leaves: Annotated[tuple[Leaf, ...], Field(min_length=1)] = (Leaf(),)
    crown: Leaf | None = None
    name: str = ""


def of(text: str, *, secret: bool = False) -> list[str]:
    document = parse_document(text.encode(), "t.yaml", secret=secret)
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Tree).validate_python(document.value, strict=False)
    return [str(fault) for fault in explain(caught.value, document, Tree)]


def test_names_are_looked_for_where_the_key_stands():
    assert of("leaves:\n  - height: 1\n    hight: 2\n") == [
        "t.yaml:3: leaves[0]: unknown key 'hight'; did you mean 'height'?"
    ]
    assert of("crown:\n  widht: 2\n") == ["t.yaml:2: crown: unknown key 'widht'; did you mean 'width'?"]
    assert of("nmae: 2\n") == ["t.yaml:1: unknown key 'nmae'; did you mean 'name'?"]


def test_a_list_with_items_at_fault_is_not_called_empty():
    assert of("leaves:\n  - 7\n") == ["t.yaml:2: leaves[0]: expected a mapping of keys to values, found '7'"]
    assert of("leaves: []\n") == ["t.yaml:1: leaves: must not be empty"]


def test_what_is_expected_and_found_is_said_in_plain_words():
    assert of("name: 7\n") == ["t.yaml:1: name: expected text, found '7'; write \"7\""]
    assert of("name: true\n") == ["t.yaml:1: name: expected text, found 'true'; write \"true\""]
    assert of("name: []\n") == ["t.yaml:1: name: expected text, found a list"]
    assert of("name:\n") == ["t.yaml:1: name: expected text, found nothing"]
    assert of("leaves:\n  a: 1\n") == ["t.yaml:1: leaves: expected a list, found a mapping"]


def test_a_choice_lists_what_there_is():
    assert of("kind: okk\n") == ["t.yaml:1: kind: 'okk' is none of oak, elm; did you mean 'oak'?"]
    assert of("kind: xyz\n") == ["t.yaml:1: kind: 'xyz' is none of oak, elm"]


def test_a_secret_file_is_not_quoted():
    assert of("kind: hunter2\n", secret=True) == ["t.yaml:1: kind: is none of oak, elm"]
    assert of("hunter2: 1\n", secret=True) == ["t.yaml:1: unknown key; there is crown, kind, leaves, name"]
    assert of("name: 7\n", secret=True) == [
        "t.yaml:1: name: expected text; put it in quotes if it looks like something else"
    ]


def test_a_suggestion_is_near_or_a_list_of_all():
    assert nearest("HOME", ["ring", "home"]) == "; did you mean 'home'?"
    assert nearest("xyz", ["ring", "home"]) == "; there is home, ring"
    assert nearest("xyz", []) == "; there is none"


def test_places_are_written_as_paths():
    assert dotted(("replicas", 0, "url")) == "replicas[0].url"
    assert dotted(()) == ""
