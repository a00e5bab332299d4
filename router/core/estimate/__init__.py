"""What is learned of replicas from how turns went: small estimators, each of one quantity.

Pure: they read no clock and know no replica. Each begins with a seed, is bounded, takes a single absurd
observation for little, and is thrown away when the replica restarts.
"""
