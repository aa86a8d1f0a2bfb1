"""Replays of results: how far two computations of the same work are apart."""
