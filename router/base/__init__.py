"""What every layer shares: identifiers, errors, units, clocks, task ownership. Standard library only."""
