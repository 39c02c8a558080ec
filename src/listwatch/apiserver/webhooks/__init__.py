"""Webhooks: how they are called, and how their responses are used."""
