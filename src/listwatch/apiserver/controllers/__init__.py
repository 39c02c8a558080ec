"""Controllers that change objects, like those that run with a real API server."""
