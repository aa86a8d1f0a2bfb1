"""Who may do what: the coordinator's key, nonces, tokens, the admin token. Time is an argument everywhere."""
