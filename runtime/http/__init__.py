"""HTTP for all programs: servers, clients, bodies, errors and their descriptions."""
