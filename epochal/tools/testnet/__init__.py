"""A whole run on this machine: `epochal up`."""
