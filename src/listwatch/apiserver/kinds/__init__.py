"""The differences between kinds: defaults, rules, conversions, tables."""
