"""The store: prefixes stay prefixes, nobody sees another tenant's blocks, and who goes first is earned."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.kv import NAMESPACE, chain

from router.kv.keys import ROOT, BlockKey
from router.kv.store import Appended, SessionName, Store, StorePolicy, Zone

SPACE = NAMESPACE.space


def store(capacity=100, **policy):
    return Store(StorePolicy(capacity_bytes=capacity, **policy))


def key(hash_, tenant="t"):
    return BlockKey(SPACE, tenant, hash_)


def name(session, tenant="t"):
    return SessionName(SPACE, tenant, session)


def put(kept, hashes, *, session="", after=ROOT, tenant="t", zone=Zone.SESSION, now=0.0, size=1):
    """Append a chain; what became of each block."""
    outcomes = []
    for hash_ in hashes:
        outcomes.append(
            kept.append(key(hash_, tenant), after, 7, hash_, size=size, zone=zone, session=session, now=now)
        )
        after = hash_
    return outcomes


def prefix(kept, hashes, tenant="t"):
    return len(kept.prefix(SPACE, tenant, hashes))


def test_the_longest_prefix_is_found_and_a_gap_ends_it():
    kept = store()
    hashes = chain("a", 5)
    assert put(kept, hashes[:3]) == [Appended.STORED] * 3
    assert prefix(kept, hashes) == 3
    assert prefix(kept, hashes[1:]) == 2
    kept.damaged(kept.get(key(hashes[1])))
    assert prefix(kept, hashes) == 1
    assert kept.counts.damaged == 1


def test_another_tenants_block_looks_like_absence():
    kept = store()
    hashes = chain("a", 3)
    put(kept, hashes, tenant="mine")
    assert prefix(kept, hashes, tenant="theirs") == 0
    assert put(kept, hashes[1:], after=hashes[0], tenant="theirs") == [Appended.ORPHAN] * 2
    assert kept.append(
        key(hashes[0], "theirs"), ROOT, 99, 0, size=1, zone=Zone.SESSION, session="", now=0
    ) == (Appended.STORED), "not even other bytes under the same hash show"


def test_append_never_overwrites():
    kept = store()
    (hash_,) = chain("a", 1)
    put(kept, [hash_])
    assert put(kept, [hash_]) == [Appended.SAME]
    outcome = kept.append(key(hash_), ROOT, 8, "new", size=1, zone=Zone.SESSION, session="", now=0)
    assert outcome is Appended.CONFLICT
    assert (kept.get(key(hash_)).checksum, kept.get(key(hash_)).place) == (7, hash_)
    assert (kept.counts.same, kept.counts.conflicts, kept.counts.stored) == (1, 1, 1)


def test_a_parent_must_be_there():
    kept = store()
    hashes = chain("a", 2)
    assert put(kept, hashes[1:], after=hashes[0]) == [Appended.ORPHAN]
    assert kept.counts.orphans == 1
    assert len(kept) == 0


def test_an_offer_is_judged_without_its_bytes():
    kept = store()
    one, two = chain("a", 2)
    assert kept.offer(key(one), ROOT, 7) is Appended.STORED
    assert kept.offer(key(two), one, 7) is Appended.ORPHAN
    put(kept, [one])
    assert kept.offer(key(one), ROOT, 7) is Appended.SAME
    assert kept.offer(key(one), ROOT, 8) is Appended.CONFLICT


def test_the_last_block_of_a_chain_goes_first():
    kept = store()
    hashes = chain("a", 4)
    put(kept, hashes)
    gone = kept.evict(2, 1.0)
    assert [block.place for block in gone] == [hashes[3], hashes[2]]
    assert prefix(kept, hashes) == 2


def test_the_water_mark_says_how_much_should_go():
    kept = store(capacity=10, high_water=0.7)
    put(kept, chain("a", 7))
    assert kept.excess_bytes == 0
    put(kept, chain("b", 2))
    assert kept.excess_bytes == 2


def test_a_used_block_outlives_one_that_is_not_of_use():
    kept = store()
    old, fresh = chain("old", 1), chain("fresh", 1)
    put(kept, old, now=0.0)
    put(kept, fresh, now=1.0)
    for moment in (2.0, 3.0, 4.0):
        kept.use(kept.prefix(SPACE, "t", old), None, moment)
    assert kept.evict(1, 5.0)[0].place == fresh[0]


def test_old_fame_fades():
    kept = store(half_life_s=10.0)
    famous, fresh = chain("famous", 1), chain("fresh", 1)
    put(kept, famous, now=0.0)
    for _ in range(20):
        kept.use(kept.prefix(SPACE, "t", famous), None, 0.0)
    put(kept, fresh, now=100.0)
    assert kept.evict(1, 100.0)[0].place == famous[0]


def test_what_is_dear_to_compute_stays_longer():
    kept = store(depth_doubling=4)
    deep, shallow = chain("deep", 20), chain("shallow", 1)
    put(kept, deep, now=0.0)
    put(kept, shallow, now=0.5)
    assert kept.evict(1, 1.0)[0].place == shallow[0]


def test_what_many_share_stays_longer():
    kept = store(session_window_s=0.0)
    shared, own = chain("shared", 1), chain("own", 1)
    for session in "abcd":
        put(kept, shared, session=session, now=0.0)
    for _ in range(4):
        put(kept, own, session="e", now=0.0)
    assert kept.evict(1, 1.0)[0].place == own[0]


def test_a_long_lived_session_outlives_a_one_off():
    kept = store(session_window_s=10.0)
    long, once = chain("long", 2), chain("once", 2)
    put(kept, long, session="long", now=0.0)
    for turn in range(10):
        kept.active(name("long"), float(turn))
    put(kept, once, session="once", now=9.0)
    gone = kept.evict(2, 100.0)
    assert {block.place for block in gone} == set(once)


def test_an_active_sessions_blocks_stay_unless_there_is_nothing_else():
    kept = store(session_window_s=60.0)
    active, idle = chain("active", 2), chain("idle", 2)
    put(kept, idle, session="idle", now=0.0)
    put(kept, active, session="active", now=50.0)
    for _ in range(50):
        kept.use(kept.prefix(SPACE, "t", idle), None, 50.0)
    assert {block.place for block in kept.evict(9, 70.0)} == set(idle)
    assert kept.evict(1, 70.0) == []
    assert len(kept.evict(1, 70.0, hard=True)) == 1
    assert len(kept.evict(1, 111.0)) == 1


def test_what_is_leased_stays_until_then():
    kept = store()
    hashes = chain("a", 2)
    put(kept, hashes)
    kept.lease(kept.prefix(SPACE, "t", hashes), until=5.0)
    assert kept.evict(2, 4.9, hard=True) == []
    assert len(kept.evict(2, 5.0)) == 2


def test_system_blocks_stay_within_their_share_and_until_nobody_wants_them():
    kept = store(capacity=8, system_share=0.25, system_idle_s=100.0)
    system = chain("system", 3)
    put(kept, system, zone=Zone.SYSTEM)
    gone = kept.evict(8, 50.0, hard=True)
    assert [block.place for block in gone] == system[2:], "the share is two blocks"
    assert kept.evict(8, 99.0, hard=True) == []
    kept.use(kept.prefix(SPACE, "t", system[:1]), None, 99.0)
    assert [block.place for block in kept.evict(8, 150.0)] == [system[1]]
    assert kept.counts.evicted == {Zone.SYSTEM: 1, Zone.SESSION: 1}


def test_a_tenant_has_its_share_and_no_more():
    kept = store(capacity=10, tenant_share=0.3)
    assert put(kept, chain("a", 4), tenant="a") == [*[Appended.STORED] * 3, Appended.QUOTA]
    assert put(kept, chain("a", 3), tenant="b") == [Appended.STORED] * 3
    assert kept.quota_excess("a", 1) == 1
    (gone,) = kept.evict(kept.quota_excess("a", 1), 0.0, tenant="a")
    assert gone.key.tenant == "a"
    assert kept.quota_excess("a", 1) == 0
    assert (kept.tenant_bytes("a"), kept.tenant_bytes("b")) == (2, 3)
    assert kept.evict(1, 0.0, tenant="nobody") == []


def test_a_session_is_known_by_its_last_block():
    kept = store()
    first = chain("s", 3)
    put(kept, first, session="s", now=1.0)
    later = chain("more", 2, after=first[-1])
    put(kept, later, session="s", after=first[-1], now=2.0)
    assert [block.place for block in kept.chain(name("s"))] == first + later
    assert kept.chain(name("s", "other")) == []
    put(kept, first[:1], session="s", now=3.0)
    assert len(kept.chain(name("s"))) == 5, "a shorter prefix of the same is nothing new"


def test_a_session_that_begins_its_history_anew_is_followed():
    kept = store()
    put(kept, chain("long", 5), session="s")
    short = chain("summary", 2)
    put(kept, short, session="s", now=1.0)
    assert [block.place for block in kept.chain(name("s"))] == short


def test_a_session_that_adopts_what_is_there_is_known_too():
    kept = store()
    hashes = chain("a", 3)
    put(kept, hashes, session="one")
    put(kept, hashes, session="two")
    assert len(kept.chain(name("two"))) == 3
    kept.evict(1, 1e6)
    assert [held.blocks for held in kept.changes(0).held] == [2, 2]


def test_a_gap_makes_a_chain_worth_nothing_until_it_is_filled():
    kept = store()
    hashes = chain("a", 3)
    put(kept, hashes, session="s")
    kept.damaged(kept.get(key(hashes[1])))
    assert kept.chain(name("s")) == []
    assert put(kept, hashes[1:2], after=hashes[0], session="s") == [Appended.STORED]
    assert [block.place for block in kept.chain(name("s"))] == hashes
    assert not kept.get(key(hashes[1])).is_leaf()


def test_a_released_session_leaves_what_others_use():
    kept = store()
    system, shared = chain("system", 2), chain("shared", 2)
    put(kept, system, zone=Zone.SYSTEM)
    put(kept, system + shared, session="one")
    put(kept, system + shared, session="two")
    own = chain("own", 3, after=shared[-1])
    put(kept, own, session="one", after=shared[-1])
    assert [block.place for block in kept.release(name("one"), 1.0)] == own[::-1]
    assert prefix(kept, system + shared + own) == 4
    assert len(kept.chain(name("two"))) == 4
    assert kept.release(name("nobody"), 1.0) == []


def test_a_release_respects_leases():
    kept = store()
    hashes = chain("a", 2)
    put(kept, hashes, session="s")
    kept.lease(kept.prefix(SPACE, "t", hashes), until=9.0)
    assert kept.release(name("s"), 1.0) == []
    assert len(kept.release(name("s"), 9.0)) == 2
    assert kept.sessions == 0


def test_changes_tell_what_is_new_and_what_is_gone():
    kept = store()
    put(kept, chain("a", 2), session="a", now=1.0)
    put(kept, chain("b", 1), session="b", now=2.0)
    everything = kept.changes(0)
    assert everything.complete
    assert {(held.name.id, held.blocks, held.active) for held in everything.held} == {
        ("a", 2, 1.0),
        ("b", 1, 2.0),
    }
    assert kept.changes(everything.number) == (everything.number, (), (), False)
    kept.release(name("a"), 3.0)
    put(kept, chain("c", 1), session="c", now=3.0)
    news = kept.changes(everything.number)
    assert [held.name.id for held in news.held] == ["c"]
    assert [gone.id for gone in news.gone] == ["a"]
    assert not news.complete
    assert kept.changes(news.number + 100).complete, "the number of another life"


def test_clearing_removes_all():
    kept = store()
    put(kept, chain("a", 3), session="s")
    assert len(kept.clear()) == 3
    assert (len(kept), kept.used_bytes, kept.sessions) == (0, 0, 0)


class StoreMachine(RuleBasedStateMachine):
    """Whatever happens, books and blocks agree, and what is held of a chain has no gap."""

    def __init__(self):
        super().__init__()
        self.kept = store(capacity=12, tenant_share=0.75, session_window_s=5.0)
        self.now = 0.0
        self.chains = {name: chain(name, 5) for name in "ab"}
        self.chains["a2"] = self.chains["a"][:2] + chain("branch", 3, after=self.chains["a"][1])

    @rule(which=st.sampled_from(["a", "b", "a2"]), length=st.integers(1, 5), tenant=st.sampled_from("tu"),
          session=st.sampled_from(["", "s", "z"]), zone=st.sampled_from(Zone))  # fmt: skip
    def put(self, which, length, tenant, session, zone):
        self.now += 1.0
        put(self.kept, self.chains[which][:length], tenant=tenant, session=session, zone=zone, now=self.now)

    @rule(need=st.integers(1, 6), hard=st.booleans(), tenant=st.sampled_from([None, "t", "u"]))
    def evict(self, need, hard, tenant):
        self.now += 1.0
        leased = {block.key for block in self.kept if block.leased_until > self.now}
        gone = self.kept.evict(need, self.now, hard=hard, tenant=tenant)
        assert not leased & {block.key for block in gone}
        assert all(block.key not in self.kept for block in gone)

    @rule(which=st.sampled_from(["a", "b", "a2"]), tenant=st.sampled_from("tu"), lease=st.booleans())
    def use(self, which, tenant, lease):
        self.now += 1.0
        found = self.kept.prefix(SPACE, tenant, self.chains[which])
        self.kept.use(found, name("s", tenant), self.now)
        if lease:
            self.kept.lease(found, self.now + 3.0)

    @rule(session=st.sampled_from("sz"), tenant=st.sampled_from("tu"))
    def end(self, session, tenant):
        self.kept.release(name(session, tenant), self.now)

    @invariant()
    def books_agree(self):
        blocks = list(self.kept)
        assert self.kept.used_bytes == sum(block.size for block in blocks)
        for tenant in "tu":
            assert (
                self.kept.tenant_bytes(tenant) == sum(b.size for b in blocks if b.key.tenant == tenant) <= 9
            )
        children = Counter(block.key._replace(hash=block.parent) for block in blocks)
        for block in blocks:
            assert block.children == children[block.key]
            assert block.parent == ROOT or block.key._replace(hash=block.parent) in self.kept

    @invariant()
    def sessions_agree(self):
        held = self.kept.changes(0).held
        assert len(held) == self.kept.sessions
        for one in held:
            found = self.kept.chain(one.name)
            assert len(found) == one.blocks == found[-1].depth
            assert one.name in found[-1].tails


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("count", [2000])
def test_eviction_stays_fast_beside_many_protected_sessions(count):
    kept = store(capacity=10 * count, session_window_s=1e9)
    for number in range(count):
        put(kept, chain(f"s{number}", 2), session=f"s{number}", now=1.0)
    assert kept.evict(1, 2.0) == []
    idle = chain("idle", 50)
    put(kept, idle, now=1.0)
    assert len(kept.evict(50, 2.0)) == 50
