"""Packing: samples of different lengths become full rows."""
