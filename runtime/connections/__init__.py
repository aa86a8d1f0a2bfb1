"""Connections for all programs: accepting, shedding, connecting, and the addresses that are allowed."""
