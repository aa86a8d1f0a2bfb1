"""A service that trains for clients without their own device."""
