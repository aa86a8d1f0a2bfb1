"""Error feedback of a client: what its codec left out, on disk. Import from the modules, never from the package."""
