"""The server's HTTP: connections, requests, response forms. Knows nothing of verbs."""
