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
SIZE, ROWS = 1000, 16
"""More ids than the engine's own nucleus search looks at first."""


def law_error(sampling: Sampling) -> float:
    """The largest difference of a probability over `ROWS` random rows of logits [V]."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for logits in 3 * torch.randn(ROWS, SIZE, generator=generator):
        theirs = _theirs(sampling, logits)
        distribution = Distribution([sampling], [len(PROMPT)], (EOS,), torch.device("cpu"))
        drafts = torch.zeros(1, 0, dtype=torch.long)
        ours = distribution(logits[None, None], [[*PROMPT, *OUTPUT]], drafts)[0, 0]
        worst = max(worst, (ours.double() - theirs.double()).abs().max().item())
    return worst


def _theirs(sampling: Sampling, logits: torch.Tensor) -> torch.Tensor:
    """Probabilities [V] by transformers' processors, in the order in which `generate` has them.

    transformers has no frequency and presence penalties: they are subtracted as OpenAI defines
    them, frequency · count + presence · [count > 0], between its processors and its warpers.
    """
    found, ids = logits.clone(), torch.tensor([[*PROMPT, *OUTPUT]])
    context = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        context.append(logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.min_new_tokens:
        context.append(
            logits_process.MinNewTokensLengthLogitsProcessor(
                len(PROMPT), sampling.min_new_tokens, [EOS]
            )
        )
    found = context(ids, found[None])[0]  # pyright: ignore[reportArgumentType]
    for token in set(OUTPUT):
        count = OUTPUT.count(token)
        found[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    warpers = LogitsProcessorList([logits_process.TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(logits_process.MinPLogitsWarper(sampling.min_p))
    return warpers(ids, found[None]).softmax(-1)[0]  # pyright: ignore[reportArgumentType]
