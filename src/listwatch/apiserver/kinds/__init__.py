"""How kinds differ from each other."""
