"""What is learned of a model, how it sets sessions apart, and which models are kept."""

from router.base.ids import SessionKey
from router.core.model import Model, Models


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


def test_asking_for_a_model_is_not_learning_of_it_and_a_turn_for_it_is() -> None:
    models = Models()
    asked = models.of("m")
    assert ("m" in models, len(models)) == (False, 0)
    models.used("m", asked)
    assert models.of("m") is asked
    assert models.keys(SessionKey("s")) == [asked.key(SessionKey("s"))]


def test_beyond_so_many_the_one_used_longest_ago_goes() -> None:
    models = Models(most=2)
    for name in ("one", "two", "one", "three"):
        models.used(name, models.of(name))
    assert list(models) == ["one", "three"]


def test_ratios_are_recalled_of_what_nothing_is_known_of() -> None:
    models, other = Models(), Models()
    models.used("m", models.of("m"))
    other.used("m", Model("m", 0.5))
    other.used("n", Model("n", 0.4))
    models.recall(other.ratios())
    assert models.ratios() == (("m", Model("m").ratio.value), ("n", 0.4))
