"""Every way to ask a coordinator: the API, its HTTP client, the operator's client."""
