"""The API: paths and verbs, reading, watching, writing, and its descriptions."""
