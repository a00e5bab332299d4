"""Metrics of pairs."""

from router.base.ids import ReplicaId, SessionKey
from router.core.claims import Claim
from router.core.pairbook import PairBook, PairEnd, Unreturned
from router.core.plan import PullRules
from router.core.token_ids import TokenIds
from router.telemetry.pairs import pair_metrics
from router.telemetry.points import Builder
from router.telemetry.prometheus import render


class Releases:
    def __init__(self) -> None:
        self.released = {True: 3, False: 1}


def test_pairs_show_where_there_are_any() -> None:
    book = PairBook(PullRules())
    book.ends[PairEnd.PULLED] = 7
    book.unreturned[Unreturned.DECLINED] = 2
    book.claims.put(SessionKey("s"), Claim(ReplicaId("d"), 0, "m", TokenIds(b"1,", 1), 16, b"{}", 9.0, 16))
    text = render(pair_metrics(book, Releases(), Builder(1, 2)))
    shown = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'homing_pair_prompts_total{result="pulled"} 7' in shown
    assert 'homing_pair_unreturned_total{why="declined"} 2' in shown
    assert 'homing_pair_unclaimed_total{why="streamed"} 0' in shown
    assert "homing_pair_offers 1" in shown
    assert 'homing_pair_releases_total{told="true"} 3' in shown
    assert pair_metrics(book, None, Builder(1, 2)) == []
