"""What the commands do that is more than a command: planning, preparing, exporting, evaluating, checking."""
