"""What pulls are worth when something happens to a fleet, in virtual time: `python -m loadtest.pulls`."""
