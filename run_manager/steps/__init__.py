"""The steps of a client's round. Import from the modules, never from the package."""
