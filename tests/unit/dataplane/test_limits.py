"""The bounds of the data plane."""

import pytest

from router.dataplane.limits import Limits


@pytest.mark.parametrize(
    ("total_s", "patience_s", "expected"),
    [(None, None, None), (60.0, None, 60.0), (None, 600.0, 540.0), (60.0, 600.0, 60.0), (60.0, 50.0, 45.0)],
)
def test_a_turn_waits_no_longer_than_its_client_and_the_total_limit(
    total_s: float | None, patience_s: float | None, expected: float | None
) -> None:
    assert Limits(total_s=total_s).wait_s(patience_s) == expected
