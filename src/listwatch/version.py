"""The version of the package, written here: to ask its metadata takes 14 ms and 2 MB."""

__version__ = "0.1.0"
