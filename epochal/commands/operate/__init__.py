"""Commands of a run's operator."""
