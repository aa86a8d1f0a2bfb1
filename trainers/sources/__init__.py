"""The places from which a run's first parameters and its model's config are read."""
