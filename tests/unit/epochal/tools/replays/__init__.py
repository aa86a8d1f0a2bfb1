"""Replays of results."""
