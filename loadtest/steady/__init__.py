"""Acceptance of operations: what turns notice of a reload, a drain, a death, a restart."""
