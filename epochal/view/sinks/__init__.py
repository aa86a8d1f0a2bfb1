"""Places for a run's figures, which `epochal watch --to` writes."""
