"""One client of several processes: an agent, and the processes of its mesh that load the data and train."""
