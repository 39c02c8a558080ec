"""The API: paths and verbs, reading, watching, writing, discovery and OpenAPI."""
