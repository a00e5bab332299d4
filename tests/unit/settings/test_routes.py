"""The first route that matches wins; what none matches takes the default."""

import pytest

from router.base.ids import OPEN_TENANT, TenantId
from router.settings.routes import RouteTable, Rule

CHAT = "/v1/chat/completions"


def test_without_routes_everything_takes_the_default():
    assert RouteTable().match(CHAT, "m", OPEN_TENANT) == 0


@pytest.mark.parametrize(
    ("path", "model", "tenant", "plan"),
    [
        ("/v1/embeddings", "m", "", 1),
        ("/v1/embeddings/x", "m", "", 0),
        ("/v1/audio/speech", "m", "", 2),
        ("/v1/audio", "m", "", 0),
        (CHAT, "qwen-7b", "acme", 3),
        (CHAT, "qwen-7b", "acme2", 0),
        (CHAT, "Qwen-7b", "acme", 0),
        (CHAT, "", "acme", 0),
        ("/v1/embeddings", "qwen-7b", "acme", 1),
    ],
)
def test_all_that_a_route_gives_must_match_and_the_first_wins(path, model, tenant, plan):
    table = RouteTable(
        [
            Rule("/v1/embeddings", None, None, 1),
            Rule("/v1/audio/*", None, None, 2),
            Rule(None, "qwen-*", "acme", 3),
            Rule("/v1/embeddings", None, None, 4),
        ]
    )
    assert table.match(path, model, TenantId(tenant)) == plan


def test_a_star_alone_matches_a_request_without_a_model():
    assert RouteTable([Rule(None, "*", None, 1)]).match(CHAT, "", OPEN_TENANT) == 1
