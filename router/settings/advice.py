"""What an operator should know of settings that are without fault: of all of them together.

What one file asks for without effect is said in `notices`.
"""

from router.settings.config import RouterConfig
from router.settings.credentials import Secrets
from router.settings.load import Loaded


def notices_of(loaded: Loaded[RouterConfig], secrets: Secrets) -> tuple[str, ...]:
    """What an operator should know of these settings: complete lines."""
    return (*loaded.notices, *_access_notices(loaded.value, secrets))


def _access_notices(config: RouterConfig, secrets: Secrets) -> tuple[str, ...]:
    notices = []
    if secrets.keys is None and config.access.tenant_header is None:
        notices.append(
            "no API keys are configured: everyone who can reach the port may use it, as one tenant"
            " (set access.keys_file or HOMING_API_KEYS)"
        )
    if secrets.keys is not None or config.access.tenant_header is not None:
        notices.append(
            "tenants are kept apart in the replicas' caches by cache_salt: vLLM before 0.27 ignores it on"
            " /v1/messages, where tenants then share cached prompts"
        )
    if secrets.secret is None and (secrets.keys is not None or config.access.tenant_header is not None):
        notices.append(
            "no secret is configured: session keys and cache salts are made with a public constant, so a"
            " tenant that reaches a replica past the router could guess them (set access.secret_file or"
            " HOMING_SECRET)"
        )
    if secrets.secret is None and (config.kv.gateways or any(one.kv_agent for one in config.replicas)):
        notices.append(
            "no secret is configured: KV agents and gateways do not listen to this router, and nothing is"
            " pulled (set access.secret_file or HOMING_SECRET, as in their files)"
        )
    return tuple(notices)
