"""Trainers, which compute a client's local steps: one protocol, several implementations."""
