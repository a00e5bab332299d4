"""The one error of the bench."""


class BenchError(Exception):
    """Something cannot be measured; the text says what and why."""
