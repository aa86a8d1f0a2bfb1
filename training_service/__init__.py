"""A service that trains for clients without a device of their own."""
