"""The API itself: paths and verbs, reading, watching, writing, and what describes it all."""
