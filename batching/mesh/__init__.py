"""Mesh layout: which process loads which rows."""
