"""One manager over several clusters: their caches, keys that carry their cluster, one queue."""
