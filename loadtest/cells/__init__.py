"""The shipped policies over real sessions at four loads, in virtual time: `python -m loadtest.cells`."""
