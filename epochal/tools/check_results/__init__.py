"""A checker: a process beside an object store that checks results for a coordinator, and adds them up."""
