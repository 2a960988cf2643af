"""How tokens are chosen: the settings of one prompt, for the configuration and the engine alike.

This file imports no torch, because the configuration reads it before anything heavy is needed.
"""

from dataclasses import dataclass, fields

from distill.errors import UserError

# Below this, dividing logits by the temperature overflows half precision and means argmax anyway.
GREEDY_BELOW = 1e-5
NO_PART_OF_GREEDY = {"top_k", "top_p", "min_p"}


# Not frozen: OmegaConf would make its keys read-only (`evaluate.samplings.0.temperature=0.7`).
# Settings are dictionary keys in the engine, and nothing changes one after it was made.
@dataclass(unsafe_hash=True)
class Sampling:
    """Sampling settings, with the meaning that transformers' `generate` gives them.

    temperature 0 (or vanishing) takes the argmax; top_k 0, top_p 1 and min_p 0 filter nothing.
    repetition_penalty counts prompt and output; frequency_penalty and presence_penalty (OpenAI's
    definition: subtract f·count + p·[count > 0]) count the output only. No end token is emitted
    among the first min_new_tokens.

    Raises:
        UserError: a value is out of its range; the message names the key as the user wrote it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0

    def __post_init__(self):
        self._require(0 <= self.temperature < float("inf"), "temperature", "0 (greedy) or more")
        self._require(self.top_k >= 0, "top_k", "0 (no limit) or a positive count")
        self._require(0 < self.top_p <= 1, "top_p", "in (0, 1]; 1 filters nothing")
        self._require(0 <= self.min_p <= 1, "min_p", "in [0, 1]; 0 filters nothing")
        self._require(0 < self.repetition_penalty < float("inf"), "repetition_penalty", "positive")
        self._require(abs(self.frequency_penalty) < float("inf"), "frequency_penalty", "finite")
        self._require(abs(self.presence_penalty) < float("inf"), "presence_penalty", "finite")
        self._require(self.min_new_tokens >= 0, "min_new_tokens", "0 or more")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def name(self) -> str:
        """`greedy` or the temperature, and what differs from the defaults.

        Settings of one name have one law: what cannot move the argmax is no part of a greedy one's.
        """
        silent = {"temperature"} | (NO_PART_OF_GREEDY if self.greedy else set())
        changed = [
            f"{field.name}={getattr(self, field.name):g}"
            for field in fields(self)
            if field.name not in silent and getattr(self, field.name) != field.default
        ]
        return " ".join(["greedy" if self.greedy else f"T={self.temperature:g}", *changed])

    def _require(self, holds: bool, key: str, wanted: str) -> None:
        if not holds:
            raise UserError(
                f"sampling: {key} must be {wanted} (`{{{key}: {getattr(self, key):g}}}` was given)."
            )
