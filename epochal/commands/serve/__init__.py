"""Commands that run a program of a run until it ends."""
