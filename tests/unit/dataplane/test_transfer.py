"""Parameters between replicas: what is passed on is sound, and of no more tokens than were asked for."""

import json

import pytest

from router.dataplane.transfer import is_handed, offer_of, trimmed

OFFER = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[3, 1, 4, 1, 5]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 70,
    "remote_blocks_expiry_time": 12.5,
    "transfer_mode": "pull",
}


def raw(**changed: object) -> bytes:
    return json.dumps({**OFFER, **changed}).encode()


def test_an_offer_is_read() -> None:
    offer = offer_of(raw(), 16)
    assert offer is not None
    assert (offer.tokens, offer.blocks) == (70, 5)
    assert not is_handed(raw())
    assert is_handed(raw(do_remote_prefill=True, do_remote_decode=False))


@pytest.mark.parametrize(
    "changed",
    [
        {"do_remote_decode": False},
        {"remote_num_tokens": 0},
        {"remote_num_tokens": None},
        {"remote_num_tokens": 90},
        {"remote_num_tokens": 64},
        {"remote_block_ids": None},
        {"remote_block_ids": []},
        {"remote_block_ids": [[1, 2, 3, 4, 5], [1, 2]]},
        {"remote_block_ids": [["1"]]},
        {"remote_block_ids": [[1, 2, 3, 4, "5"]]},
        {"remote_block_ids": [[1, 2, 3, 4, -5]]},
        {"remote_block_ids": [[1, 2, 3, 4, [5]]]},
        {"remote_block_ids": [1, 2, 3, 4, 5]},
        {"remote_host": 5},
    ],
)
def test_what_does_not_add_up_or_is_not_as_known_is_no_offer(changed: dict[str, object]) -> None:
    assert offer_of(raw(**changed), 16) is None


@pytest.mark.parametrize("groups", [None, [], [["1"]], [[1, 2], [-1]], [1, 2]])
def test_nor_is_a_prompt_handed_on_by_it(groups: object) -> None:
    assert not is_handed(raw(do_remote_prefill=True, do_remote_decode=False, remote_block_ids=groups))


@pytest.mark.parametrize("text", [b"null", b"[]", b"{", b"{}", b"[" * 5000])
def test_what_is_no_object_of_the_kind_is_neither(text: bytes) -> None:
    assert offer_of(text, 16) is None
    assert not is_handed(text)


def test_an_offer_is_cut_to_whole_blocks_and_keeps_all_else_as_it_was() -> None:
    cut = json.loads(trimmed(raw(), 32, 16))
    assert cut == {**OFFER, "remote_block_ids": [[3, 1]], "remote_num_tokens": 32}
    assert json.loads(trimmed(raw(), 0, 16)) == {**OFFER, "remote_num_tokens": 0}
    two = raw(remote_block_ids=[[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    assert json.loads(trimmed(two, 16, 16))["remote_block_ids"] == [[3], [9]]
