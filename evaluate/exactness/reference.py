"""The engine's law beside the one that transformers' `generate` would sample from.

Shapes: V vocabulary.
"""

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from distill.evaluate.exactness.toy import EOS
from distill.speculative.processors import Distribution
from distill.speculative.sampling import Sampling

PROMPT, OUTPUT = [2, 5, 3], [4, 4]
"""What penalties look at: the prompt's and the output's tokens."""
SIZE, ROWS = 12, 64


def law_error(sampling: Sampling) -> float:
    """The largest difference of a probability over `ROWS` random rows of logits [V]."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for logits in 3 * torch.randn(ROWS, SIZE, generator=generator):
        theirs = _theirs(sampling, logits)
        distribution = Distribution([sampling], [len(PROMPT)], (EOS,), torch.device("cpu"))
        ours = distribution(logits[None, None], [[*PROMPT, *OUTPUT]], None)[0, 0]
        worst = max(worst, (ours.double() - theirs.double()).abs().max().item())
    return worst


def _theirs(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """Probabilities [V] by transformers' processors, in the order in which `generate` has them.

    Frequency and presence penalties are OpenAI's; transformers has no processor for them, so they
    are subtracted first, as OpenAI's documentation defines them.
    """
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        processors.append(
            logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        )
    if sampling.min_new_tokens:
        processors.append(
            logits_process.MinNewTokensLengthLogitsProcessor(
                len(PROMPT), sampling.min_new_tokens, [EOS]
            )
        )
    processors.append(logits_process.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(logits_process.MinPLogitsWarper(sampling.min_p))
    ids = torch.tensor([[*PROMPT, *OUTPUT]])
    return processors(ids, logits[None].clone()).softmax(-1)[0]
