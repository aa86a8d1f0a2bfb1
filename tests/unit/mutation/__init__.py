"""Tests of the mutation testing of the pure core."""
