"""A worker's place, as one argument."""

import pytest

from router.base.errors import HomingError
from router.controlplane.place import Place, read_place

PLACE = Place(1, 4, (5, 6), 7, 8, 9, "/x/recall", "/x/left-1", "/x/policies.yaml")


def test_a_place_is_read_as_it_was_written():
    assert read_place(PLACE.text()) == PLACE


@pytest.mark.parametrize("text", ["", "1", "{}", PLACE.text().replace("number", "name")])
def test_what_is_none_is_refused_with_the_reason(text):
    with pytest.raises(HomingError, match="not by hand"):
        read_place(text)
