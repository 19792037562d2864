"""Reads documents and Python values as the types that settings expect."""
