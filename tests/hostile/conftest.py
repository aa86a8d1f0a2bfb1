"""Attacks meet runs in folders and runs in databases."""

from tests.support.drive.run_place import place

__all__ = ["place"]
