"""Trainers: what takes a client's local steps. One protocol; `registry.open_trainer` opens one by name."""
