"""Becomes another program, held to some cores and ended with the bench: `leash.py CORE[,CORE]… PROGRAM …`.

A program of its own, and not code that runs between fork and exec, which Python advises against. Linux only.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    cores, *command = sys.argv[1:]
    # Before the program counts the cores, since it makes its threads by them.
    os.sched_setaffinity(0, map(int, cores.split(",")))
    # Should the bench be killed outright, nothing stays behind. The setting outlives exec.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
