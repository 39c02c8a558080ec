"""HTTP as the server speaks it: connections, requests, forms of answers. Knows nothing of verbs."""
