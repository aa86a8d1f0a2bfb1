"""Prepares samples for trainers: chunks, packed rows, micro-batches and meshes. Knows no trainer."""
