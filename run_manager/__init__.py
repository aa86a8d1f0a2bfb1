"""One client of a run: agent, run manager, step machine, steps, replica, and the exchange of results."""
