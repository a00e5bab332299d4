"""The relay: HTTP/1.1 on asyncio protocols, from the client to the replica and back."""
