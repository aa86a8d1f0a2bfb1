"""Chaos: a real run whose processes are killed, stopped, cut off, slowed down, and whose disk and clocks fail.

`python -m tests.chaos` (or `make chaos`) plays faults drawn from a seed against a coordinator, a data server and
clients, heals everything, and then proves that nothing was lost: the audit with recomputed parameters, the replica
digests that clients logged, and the time until the run moved on.
"""
