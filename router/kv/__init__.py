"""KV blocks between engines: keys, wire format, arena, store, agent, gateway.

Shared by the engine's side and the router's. Imports neither aiohttp nor pydantic, and what a connector
needs (`keys`, `wire`, `messages`, `arena`, `local`) imports nothing but the standard library and msgspec.
"""
