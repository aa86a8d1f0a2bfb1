"""Where people keep a run's figures: what `epochal watch --to` writes."""
