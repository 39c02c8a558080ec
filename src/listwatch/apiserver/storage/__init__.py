"""Objects as they are kept: the store, its journal, and the rules on the way to it."""
