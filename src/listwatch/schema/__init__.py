"""Types: facts about them, decoding, defaults and rules. Knows nothing of servers."""
