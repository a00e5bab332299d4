"""Authentication: both sides show that they know the secret, and no proof is of use twice."""

import pytest
from support.kv import SECRET

from router.kv import messages as m
from router.kv.auth import AuthFault, Dialling, Listening


def test_two_of_a_fleet_agree():
    dialling, listening = Dialling(SECRET, "b", "agent"), Listening(SECRET, "a")
    proof = dialling.answer(listening.challenge(dialling.begin()))
    hello = listening.verify(proof)
    assert (hello.name, hello.role, dialling.peer_name) == ("b", "agent", "a")


def test_the_one_that_dials_says_nothing_to_a_stranger():
    dialling, listening = Dialling(SECRET, "b", "agent"), Listening(b"another", "a")
    with pytest.raises(AuthFault, match="does not know this fleet's secret"):
        dialling.answer(listening.challenge(dialling.begin()))
    assert dialling.peer_name is None


def test_a_stranger_is_refused():
    listening = Listening(SECRET, "a")
    listening.challenge(Dialling(b"another", "b", "agent").begin())
    with pytest.raises(AuthFault, match="the secret is not this fleet's") as caught:
        listening.verify(m.Proof(bytes(32)))
    assert caught.value.reason == "secret"


def test_a_proof_fits_no_other_connection():
    dialling, first = Dialling(SECRET, "b", "agent"), Listening(SECRET, "a")
    proof = dialling.answer(first.challenge(dialling.begin()))
    second = Listening(SECRET, "a")
    second.challenge(dialling.begin())
    with pytest.raises(AuthFault):
        second.verify(proof)


def test_a_listeners_own_proof_cannot_be_sent_back():
    listening = Listening(SECRET, "a")
    challenge = listening.challenge(m.Hello("b", "agent", bytes(32)))
    with pytest.raises(AuthFault):
        listening.verify(m.Proof(challenge.proof))


@pytest.mark.parametrize("edit", [{"role": "router"}, {"name": "c"}, {"nonce": b"n" * 32}])
def test_who_it_says_it_is_is_part_of_the_proof(edit):
    dialling, listening = Dialling(SECRET, "b", "agent"), Listening(SECRET, "a")
    hello = dialling.begin()
    values = {"name": hello.name, "role": hello.role, "nonce": hello.nonce, **edit}
    challenge = listening.challenge(m.Hello(**values))
    with pytest.raises(AuthFault):
        listening.verify(dialling.answer(challenge))


def test_names_cannot_lend_bytes_to_each_other():
    dialling = Dialling(SECRET, "ab", "agent")
    listening = Listening(SECRET, "c")
    challenge = listening.challenge(m.Hello("a", "agent", dialling.begin().nonce))
    with pytest.raises(AuthFault):
        dialling.answer(m.Challenge("bc", challenge.nonce, challenge.proof))


def test_the_order_is_kept():
    listening = Listening(SECRET, "a")
    with pytest.raises(AuthFault, match="PROOF comes after HELLO"):
        listening.verify(m.Proof(bytes(32)))
    hello = Dialling(SECRET, "b", "agent").begin()
    listening.challenge(hello)
    with pytest.raises(AuthFault, match="HELLO comes once"):
        listening.challenge(hello)
