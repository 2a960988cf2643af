"""Exact speculative decoding. Nothing is imported here: the settings are read without torch."""
