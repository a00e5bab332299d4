"""What is learned of a model, and how it sets sessions apart."""

from router.base.ids import SessionKey
from router.core.model import Model


def test_one_session_with_two_models_has_two_keys_and_they_begin_with_the_sessions_own() -> None:
    session = SessionKey("ab" * 16)
    large, small = Model("large").key(session), Model("small").key(session)
    assert large != small
    assert {large[:32], small[:32]} == {session}
    assert Model("large").key(session) == large


def test_a_name_that_utf8_cannot_hold_is_a_name_all_the_same() -> None:
    assert Model("\ud83d").key(SessionKey("s")) != Model("x").key(SessionKey("s"))


def test_of_a_key_the_session_can_be_told_whatever_the_model() -> None:
    session = SessionKey("ab" * 16)
    assert Model.session_of(Model("large").key(session)) == session
