"""Who computes a client's local steps: one protocol, several implementations."""
