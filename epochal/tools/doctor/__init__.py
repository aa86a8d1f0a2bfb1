"""`epochal doctor`: whether this machine can train, and how it reaches a coordinator."""
