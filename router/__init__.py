"""Homing: a session-affinity router for vLLM fleets."""

__version__ = "0.1.0"
