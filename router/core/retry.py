"""A fleet-wide budget for retries, so that failing over cannot multiply the load of a failing fleet."""

# Shares such as 0.1 add up to a whole token only but for rounding.
_ROUNDING = 1e-9


class RetryBudget:
    """A token bucket: requests and time put in, each retry takes one token out. Starts full."""

    __slots__ = ("_burst", "_filled_at", "_floor_per_s", "_share", "_tokens")

    def __init__(self, *, share: float = 0.2, floor_per_s: float = 5.0, burst: float = 20.0) -> None:
        """`share` tokens come with each request and `floor_per_s` with each second, `burst` fit.

        The floor lets a quiet fleet retry at all. Raises `ValueError` for a negative figure or a bucket
        that cannot hold one token.
        """
        if not (share >= 0.0 and floor_per_s >= 0.0 and burst >= 1.0):
            raise ValueError(
                f"retry budget out of range: {share=} (≥ 0), {floor_per_s=} (≥ 0), {burst=} (≥ 1)"
            )
        self._share = share
        self._floor_per_s = floor_per_s
        self._burst = burst
        self._tokens = burst
        self._filled_at: float | None = None

    def deposit(self, now: float, requests: int = 1) -> None:
        """Count requests, which are not themselves retries."""
        self._fill(now)
        self._tokens = min(self._burst, self._tokens + self._share * requests)

    def withdraw(self, now: float) -> bool:
        """Take the token for one retry. False, and nothing taken, where there is none."""
        self._fill(now)
        if self._tokens < 1.0 - _ROUNDING:
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True

    def _fill(self, now: float) -> None:
        if self._filled_at is None:
            self._filled_at = now
        elif now > self._filled_at:  # an earlier time, told late, adds nothing
            earned = (now - self._filled_at) * self._floor_per_s
            self._tokens = min(self._burst, self._tokens + earned)
            self._filled_at = now
