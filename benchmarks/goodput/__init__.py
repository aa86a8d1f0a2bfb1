"""The part of the members' time that is training, and what the rest is spent on."""
