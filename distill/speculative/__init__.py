"""Exact speculative decoding: `decode.decode` runs it, `drafters` guess, `rule` accepts."""
