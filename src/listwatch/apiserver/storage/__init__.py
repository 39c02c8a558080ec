"""Storage: the store, its journal, and the rules for writes."""
