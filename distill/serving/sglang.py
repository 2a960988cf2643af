"""SGLang: serves a Hugging Face folder through its speculative options. Written, not run here."""

import shlex


def command(target: str, draft: str, num_draft_tokens: int, *, head: bool) -> str:
    """A shell command that starts the server; one chain of k tokens is drafted per round.

    head: whether the draft is an EAGLE-3 head, else it is a separate model.
    """
    algorithm = "EAGLE3" if head else "STANDALONE"
    return (
        f"python -m sglang.launch_server --model-path {shlex.quote(target)} "
        f"--speculative-algorithm {algorithm} --speculative-draft-model-path {shlex.quote(draft)} "
        f"--speculative-num-steps {num_draft_tokens} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {num_draft_tokens + 1}"
    )
