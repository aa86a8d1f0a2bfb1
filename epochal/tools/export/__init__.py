"""A run's checkpoints as folders that other programs load: written, uploaded, and followed while the run continues."""
