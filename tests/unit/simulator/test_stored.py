"""Stored responses: found by id, stopped, forgotten."""

import pytest

from router.simulator import stored
from router.simulator.refusals import Refusal
from router.simulator.stored import Stored, StoredResponses


@pytest.fixture
def aborted() -> list[str]:
    return []


@pytest.fixture
def responses(aborted: list[str]) -> StoredResponses:
    return StoredResponses(aborted.append)


def response(name: str, *, job_id: str | None = None) -> Stored:
    return Stored({"id": name, "status": "completed"}, job_id=job_id)


@pytest.mark.parametrize("name", ["other", None, 7])
def test_what_is_not_there_is_a_404(responses: StoredResponses, name: object) -> None:
    responses.keep(response("one"))
    with pytest.raises(Refusal) as refused:
        responses.find(name)
    assert refused.value.status == 404


def test_one_that_is_made_in_the_background_is_cancelled_and_its_request_aborted(
    responses: StoredResponses, aborted: list[str]
) -> None:
    responses.keep(response("one", job_id="5"))
    assert responses.cancel("one")["status"] == "cancelled"
    assert aborted == ["5"]
    with pytest.raises(Refusal, match="synchronous"):
        responses.cancel("one")
    assert aborted == ["5"]


def test_a_deleted_one_is_stopped_and_gone(responses: StoredResponses, aborted: list[str]) -> None:
    responses.keep(response("one", job_id="5"))
    responses.keep(response("two"))
    responses.delete("one")
    responses.delete("two")
    assert aborted == ["5"]
    with pytest.raises(Refusal):
        responses.delete("one")


def test_the_oldest_goes_first(responses: StoredResponses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "STORED_RESPONSES", 2)
    for name in ("one", "two", "three"):
        responses.keep(response(name))
    assert responses.find("two").snapshot["id"] == "two"
    with pytest.raises(Refusal):
        responses.find("one")
