"""Meshes: which process loads which rows, and how the others get them."""
