"""A trainer behind HTTP: one machine that can compute, for many clients that cannot."""
