"""Clients that behave like agents: what they ask, in which order, after which pauses. Opens no socket."""
