"""The terms of a client's owner: when it takes part, and what it leaves to others on the machine."""
