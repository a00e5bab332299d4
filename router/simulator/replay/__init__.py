"""Replays a trace against simulated replicas, in virtual time, under one policy after the other."""
