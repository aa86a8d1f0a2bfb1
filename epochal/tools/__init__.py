"""The work behind the commands: planning, preparing, exporting, evaluating, checking."""
