"""The run's machine: stimuli in, a new run and instructions out. Pure."""
