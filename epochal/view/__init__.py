"""A run as people see it: on a terminal, in charts and reports, and in other trackers."""
