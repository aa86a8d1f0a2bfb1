"""Authentication: the coordinator's key, nonces, session tokens, the admin token. Time is always an argument."""
