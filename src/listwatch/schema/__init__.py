"""Types: what is known of them, decoding by them, defaults and rules. Knows nothing of servers."""
