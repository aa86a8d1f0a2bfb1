"""Packing: samples of any length into full rows."""
