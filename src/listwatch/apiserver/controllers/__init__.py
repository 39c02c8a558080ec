"""Controllers that change objects, like those beside a real API server."""
