"""Mixes of several sources by weight."""
