"""The one hash of the routing core: XXH3, 64 bits, the same in every process and on every machine.

Not for secrets, and not proof against someone who looks for collisions: a false match costs a wrong guess
about a cache, never another tenant's data, since engines compare tokens. Session keys use HMAC
(`session.py`).
"""

from typing import Final

from xxhash import xxh3_64_digest, xxh3_64_intdigest

# The C function itself: a wrapper would double the price of the call, and it is called once a segment.
# A chain is made by passing the hash so far as the second argument, the seed (any 64-bit value).
hash64: Final = xxh3_64_intdigest

digest64: Final = xxh3_64_digest
"""The same hash as 8 bytes, the highest first: for those that are only laid beside one another."""
