"""A run's checkpoints, in a store or at a coordinator's address: found, followed while the run continues, and read."""
