"""The race: the same sessions through one router after the other, before the same simulated replicas."""
