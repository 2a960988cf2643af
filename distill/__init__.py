"""Draft models for speculative decoding: distilled, measured by real decoding, exported."""
