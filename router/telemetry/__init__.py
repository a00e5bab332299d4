"""Counts what the engine reports, for metrics and people. Subscribes; routing never waits for it."""
