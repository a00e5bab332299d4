"""`HomingConnector`, which a request may ask to be left alone by: what it costs, within one engine.

Loaded by engines that `make engine-bench` starts, with their Python. Two engines that are alike differ by
several per cent on the same machine, for as long as they live; two requests to one engine do not.
"""

from typing import Any, Final

from router.connector import HomingConnector

ALONE: Final = {"homing-bench": "alone"}
"""The transfer parameters of a request that the connector neither asks about nor saves."""


class BypassedConnector(HomingConnector):  # type: ignore[misc]  # without vLLM's stubs its base is Any
    """The same, but for requests that are to be left alone."""

    def on_new_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """A request that is not met is not known to any other call."""
        if request.kv_transfer_params != ALONE:
            super().on_new_request(request, *args, **kwargs)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any
    ) -> tuple[int | None, bool]:
        """Nothing to load for it, at once."""
        if request.kv_transfer_params == ALONE:
            return 0, False
        found: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens, *args, **kwargs
        )
        return found
