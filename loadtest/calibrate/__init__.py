"""Holds the simulated replica against a real vLLM: what it caches block by block, and how long it takes."""
