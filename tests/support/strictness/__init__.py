"""How strict the relay is, as data: what a peer sends, and what becomes of it."""
