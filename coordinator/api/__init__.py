"""The REST routes of DESIGN section 5, thin over the handlers."""
