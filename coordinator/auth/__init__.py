"""Who may do what: keys, nonces, tokens, the admin token."""
