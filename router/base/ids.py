"""Identifiers. Each is a plain value at run time and a distinct type to the checker."""

from typing import NewType

ReplicaId = NewType("ReplicaId", str)
"""A replica's name: from the config, or `r0`, `r1`, … for `--replica` flags."""

TenantId = NewType("TenantId", str)
"""Who owns a request. `OPEN_TENANT` where no API keys are configured."""

SessionKey = NewType("SessionKey", str)
"""32 hex digits: a keyed hash over tenant and session id. Never the id that the client sent."""

OPEN_TENANT = TenantId("")
"""The one tenant of a router without API keys. No key can name it: tenant names are not empty."""
