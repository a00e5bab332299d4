"""Errors carry their reason as text and as fields."""

from router.base.errors import ErrorKind, HomingError, Refused, SettingsError


def test_a_refusal_says_what_kind_it_is_and_when_to_come_back():
    refusal = Refused(ErrorKind.OVERLOADED, "all are busy", retry_after_s=1.0)
    assert isinstance(refusal, HomingError)
    assert str(refusal) == refusal.message == "all are busy"
    assert (refusal.kind, refusal.retry_after_s) == (ErrorKind.OVERLOADED, 1.0)


def test_a_refusal_that_waiting_does_not_help_names_no_time():
    assert Refused(ErrorKind.BAD_REQUEST, "no JSON").retry_after_s is None


def test_settings_errors_have_a_line_for_each_fault():
    error = SettingsError(["a.yaml:1: one", "a.yaml:2: two"])
    assert str(error).splitlines() == error.faults == ["a.yaml:1: one", "a.yaml:2: two"]
