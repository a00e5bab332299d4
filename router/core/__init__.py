"""Decides where a turn goes. Pure: no clock, no socket, no log, no HTTP; time and chance are arguments."""
