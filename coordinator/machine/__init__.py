"""Every decision about a run, as pure functions: a stimulus in, a new run and instructions out."""
