"""What is known of pairs goes with their replicas."""

from router.base.ids import ReplicaId, SessionKey
from router.core.claims import Claim
from router.core.pairbook import PairBook
from router.core.plan import PullRules
from router.core.pullbook import Pulled
from router.core.token_ids import TokenIds

P, D = ReplicaId("p"), ReplicaId("d")


def test_with_a_replica_go_its_claims_and_what_its_paths_carry() -> None:
    book = PairBook(PullRules())
    seed = book.transfers.path(D, P)
    book.claims.put(SessionKey("s"), Claim(D, 0, "m", TokenIds(b"1,", 1), 16, b"{}", 9.0, 16))
    sharing = book.transfers.begin(D, P, 1.0)
    book.transfers.end(D, P, sharing, Pulled(1000, 10**8, 2.0, True), 3.0)
    assert book.transfers.path(D, P) != seed
    book.forget(D)
    assert book.claims.peek(SessionKey("s"), 1.0) is None
    assert set(book.ends.values()) == set(book.unreturned.values()) == set(book.unclaimed.values()) == {0}
