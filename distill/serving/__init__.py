"""One small module per serving engine, each with the functions that make sense for it.

`write(...)`: make the folder or file the engine reads. An engine without it reads what
`transformers.write` made.
`command(target, draft, num_draft_tokens)`: what a person types to serve the pair.
`prove(...) -> Proof`: the engine loads the draft, drafts with it, and agrees with plain decoding.
"""
