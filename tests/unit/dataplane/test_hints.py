"""What a hint says, and that an agent can read it."""

import json

from router.base.ids import OPEN_TENANT, ReplicaId, SessionKey
from router.core.decide import Decision, Kind
from router.core.plan import PullRules
from router.core.price import Pull
from router.core.request import EMPTY_CHAIN, Chain, Turn
from router.dataplane.hints import HintWriter, p2p_source, system_tokens
from router.kv.hint import Hint, HintReader

SECRET = b"shared"
NOW = 1_790_000_000.0
A, B, POOL = (ReplicaId(name) for name in ("a", "b", "pool"))


def decision(pull: Pull | None = None) -> Decision:
    kind = Kind.PULL if pull is not None else Kind.HOME
    return Decision(B, kind, "", "home", (), None, A, 1000, 0, 0, 0.0, pull=pull)


def turn(chain: Chain = EMPTY_CHAIN, session: str | None = "k") -> Turn:
    key = SessionKey(session) if session is not None else None
    return Turn("/v1/chat/completions", "m", OPEN_TENANT, key, "x-session-id", chain)


def written(writer: HintWriter, of: Turn, made: Decision, label: str = "t") -> Hint:
    member = writer.member(of, made, 7, label, b"r-1")
    raw = json.loads(b"{" + member + b"}")["kv_transfer_params"]["homing"]
    return HintReader(secret=SECRET, replica="b").read(raw, "chatcmpl-r-1", NOW)


def test_a_turn_that_pulls_nothing_names_its_owner_and_the_pools() -> None:
    writer = HintWriter(SECRET, PullRules(), pools=[POOL], wall=lambda: NOW)
    hint = written(writer, turn(), decision())
    assert (hint.session, hint.tenant, hint.sources, hint.epoch) == ("k", "t", ("pool",), 7)
    assert (hint.stall_s, hint.deadline_s, hint.system_tokens) == (0.15, 2.0, 0)
    assert NOW < hint.expires < NOW + 600


def test_a_pull_names_its_source_first_and_has_its_own_deadline() -> None:
    writer = HintWriter(SECRET, PullRules(stall_s=0.3), pools=[POOL], wall=lambda: NOW)
    hint = written(writer, turn(), decision(Pull(A, 900, 0.1, 3.5, 0.9)))
    assert (hint.sources, hint.stall_s, hint.deadline_s) == (("a", "pool"), 0.3, 3.5)


def test_a_pull_from_the_pool_names_it_once() -> None:
    writer = HintWriter(SECRET, PullRules(), pools=[POOL], wall=lambda: NOW)
    assert written(writer, turn(), decision(Pull(POOL, 900, 0.1, 2.0, 0.9))).sources == ("pool",)


def test_limits_beyond_what_an_agent_takes_are_cut_to_it() -> None:
    writer = HintWriter(SECRET, PullRules(stall_s=1e-9), wall=lambda: NOW)
    hint = written(writer, turn(), decision(Pull(A, 900, 0.1, 1e6, 0.9)))
    assert (hint.stall_s, hint.deadline_s) == (0.001, 3600.0)


def test_a_turn_without_a_session_has_none_in_its_hint() -> None:
    writer = HintWriter(SECRET, PullRules(), wall=lambda: NOW)
    assert written(writer, turn(session=None), decision()).session == ""


def test_system_tokens_are_the_systems_part_of_the_prompt() -> None:
    chain = Chain((1, 2, 3, 4), (0, 300, 400, 1000), 3, 2)
    assert system_tokens(chain, 250) == 75
    assert system_tokens(Chain((1, 2), (0, 300), 2), 250) == 0
    assert system_tokens(Chain((1, 2), (0, 0), 2, 1), 0) == 0


def test_vllms_own_tier_is_told_in_its_own_words_where_to_pull_from() -> None:
    member = p2p_source("10.0.0.1:5710", b'r-"1')
    assert json.loads(b"{" + member + b"}") == {
        "kv_transfer_params": {
            "remote_kv_source": {
                "kv_request_id": 'r-"1',
                "remote_host": "10.0.0.1",
                "remote_port": 5710,
            }
        }
    }
    six = json.loads(b"{" + p2p_source("[fd00::1]:5710", b"r") + b"}")["kv_transfer_params"]
    assert six["remote_kv_source"]["remote_host"] == "fd00::1"
