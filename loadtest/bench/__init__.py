"""What a proxy costs: processor time and latency of several proxies, measured in one run on the same work.

Linux only: processor time of other programs, pinning and the machine's load are read as Linux gives them.
"""
