"""In what kinds differ from each other."""
