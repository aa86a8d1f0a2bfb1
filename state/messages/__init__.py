"""Messages between clients, operators and the coordinator, each with one shape from the wire to the journal."""
