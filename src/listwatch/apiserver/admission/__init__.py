"""Admission: what an object must satisfy before it is stored."""
