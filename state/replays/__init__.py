"""Replays of results: how something was computed, and how far two computations are apart."""
