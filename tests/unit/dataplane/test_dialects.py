"""Which paths have which dialect."""

import pytest

from router.dataplane.dialects import Dialect, dialect_of


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/chat/completions", Dialect.CHAT),
        ("/v1/completions", Dialect.COMPLETIONS),
        ("/v1/responses", Dialect.RESPONSES),
        ("/v1/messages", Dialect.MESSAGES),
        ("/v1/messages/count_tokens", Dialect.MESSAGES),
        ("/tokenize", Dialect.TOKENIZE),
        ("/v1/embeddings", Dialect.POOLING),
        ("/v1/audio/transcriptions", None),
        ("/v1/chat/completions/", None),
    ],
)
def test_a_path_has_a_dialect(path: str, dialect: Dialect | None) -> None:
    assert dialect_of(path) is dialect
