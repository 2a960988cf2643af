"""Where a user's words begin and end in the target's chat template."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from distill.data import chat
from distill.errors import UserError
from distill.models.config import TargetConfig

PLACE = "PLACEOFTHEUSERSWORDS"
"""Stands for a user's words while the template is rendered."""


@dataclass(frozen=True)
class UserTurn:
    """opening: ids of all that the template writes before the words.

    ends: ids after which the words are over. closing: text that ends them where the template marks
    it with no special token; else empty.
    """

    tokenizer: PreTrainedTokenizerBase
    opening: tuple[int, ...]
    ends: frozenset[int]
    closing: str

    def words(self, tokens: Sequence[int]) -> str | None:
        """What the user says in sampled tokens; None where the turn does not end, or begins others.

        A special token among the words would be read as the template's own.
        """
        ended = bool(tokens) and tokens[-1] in self.ends
        inner = list(tokens[:-1] if ended else tokens)
        text = str(self.tokenizer.decode(inner))
        if self.closing and self.closing in text:
            # Tokens after the closing are no words of the user's: they are not looked at.
            return text[: text.index(self.closing)].strip()
        if not ended or chat.special_ids(self.tokenizer) & {*inner}:
            return None
        return text.strip()


def user_turn(
    tokenizer: PreTrainedTokenizerBase, target: TargetConfig, eos_token_ids: Sequence[int]
) -> UserTurn:
    """Read it off the template, with the serving system prompt and mode flags.

    Raises:
        UserError: no template, or one that has no place for a user's words.
    """
    messages = chat.with_system([{"role": "user", "content": PLACE}], target.system_prompt)
    try:
        text = chat.render(messages, tokenizer, target.chat_template_kwargs, True)
    except chat.UnusableChatError as error:
        raise _without_user(str(error)) from error
    if text.count(PLACE) != 1:
        raise _without_user(f"it writes a user's words {text.count(PLACE)} times")
    before, after = text.split(PLACE)
    # Most tokenizers join a space to the word that follows: alone it would begin no usual word.
    opening = chat.plain_ids(tokenizer, before.rstrip(" "))
    if not opening:
        raise _without_user("it writes nothing before a user's words")
    following = chat.plain_ids(tokenizer, after.lstrip())[:1]
    marked = chat.special_ids(tokenizer) & {*following}
    return UserTurn(
        tokenizer,
        tuple(opening),
        frozenset({*eos_token_ids, *marked}),
        "" if marked else after.strip(),
    )


def _without_user(why: str) -> UserError:
    return UserError(
        f"data=self_prompted: the target's chat template begins no user turn ({why}): use "
        "data=jsonl with a file of prompts"
    )
