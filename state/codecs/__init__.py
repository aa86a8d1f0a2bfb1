"""Codecs between differences and bytes. Import from the modules, never from the package."""
