"""Bodies as their reader reads them."""

import json
from typing import Any

from router.base.ids import TenantId
from router.dataplane.reader import Read, RequestReader

FIELDS = ("prompt_cache_key", "metadata.session_id", "session_id")
READER = RequestReader(body_fields=FIELDS, derive=True)
USER = {"role": "user", "content": "hi"}


def read(
    body: Any, path: str = "/v1/chat/completions", tenant: str = "", reader: RequestReader = READER
) -> Read:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return reader.read(path, sent, TenantId(tenant))
