"""Errors of types that can't be resources."""

from listwatch.errors import ListWatchError


class ResourceTypeError(ListWatchError):
    """A type can't be a custom resource; the message names the field and what to write instead."""
