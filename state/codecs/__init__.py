"""How a difference becomes bytes, and bytes a difference. Import from the modules, never from the package."""
