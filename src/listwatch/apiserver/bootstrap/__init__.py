"""The initial objects of a cluster."""
