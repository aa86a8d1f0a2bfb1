"""Commands on data."""
