"""The server's HTTP: connections, requests, response forms. Independent of the API's verbs."""
