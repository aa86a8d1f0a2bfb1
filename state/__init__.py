"""The run as data: documents, intervals, assignment, permutations, merge rules.

Pure: no clock, no I/O, no random numbers, no environment. Everything here is what machines that never talk
to each other must agree on bit for bit, so nothing here depends on output that may change between versions
of a library. Import from the modules (``from epochal.state.intervals import BatchId``), never from the package.
"""
