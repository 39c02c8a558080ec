"""Webhooks that the server asks: how they are reached, and what of their answers counts."""
