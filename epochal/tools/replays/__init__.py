"""Replays: the work of a client's result, computed again on this machine, and how far apart the two are."""
