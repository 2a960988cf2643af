"""The benchmark's arithmetic by hand, and its arms on tiny models. Times are not judged."""

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from distill.errors import UserError
from distill.evaluate.benchmark.decoding import Contest, Line, Rate, benchmark, generating
from distill.evaluate.report.tables import as_text, decoding_table
from distill.speculative.decode import decode
from distill.speculative.prediction import Cost
from distill.speculative.sampling import Sampling
from tests.evaluate.conftest import tiny
from tests.tiny import tiny_head


def model(seed: int) -> LlamaForCausalLM:
    return tiny(seed, vocab_size=48, max_position_embeddings=64, eos_token_id=list(range(40)))


def contest(prompts: list[list[int]]) -> Contest:
    return Contest(model(0), model(1), prompts, 48, max_new_tokens=5, repetitions=1)


def test_rates_are_compared_at_the_same_place_of_the_order() -> None:
    # 12/10, 30/20 and 2/1: the median of the ratios, not the ratio of the medians (12/10)
    assert Rate([12.0, 30.0, 2.0]).over(Rate([10.0, 20.0, 1.0])) == pytest.approx(1.5)


def test_efficiency_by_hand() -> None:
    one = Rate([1.0])
    line = Line(1, 2, one, one, None, one, 0.5, 1.75, Cost(c=0.1, v=1.05), speedup=1.33)
    assert line.predicted == pytest.approx(1.75 / 1.25)
    assert line.efficiency == pytest.approx(0.95)
    assert line.numbers()["speculative_over_assisted"] is None


def test_every_arm_emits_the_same_number_whatever_ends_the_model_knows() -> None:
    prompts = [[3, 1, 4, 1], [5, 9]]
    lines = [line for at in benchmark(contest(prompts), [1, 2], [1, 3]) for line in at]
    assert [(line.batch_size, line.num_draft_tokens) for line in lines] == [
        (1, 1), (1, 3), (2, 1), (2, 3),
    ]  # fmt: skip
    assert [line.assisted is None for line in lines] == [False, False, True, True]
    assert all(len(line.plain.tokens_per_second) == 2 for line in lines)
    assert "efficiency" in as_text(decoding_table(lines), 190)


def test_a_head_has_no_arm_in_which_generate_is_assisted() -> None:
    target = tiny(0, vocab_size=48, num_hidden_layers=6)
    head = tiny_head(torch.arange(0, 48, 2), vocab_size=48, max_position_embeddings=2048)
    with_head = Contest(target, head, [[3, 1, 4, 1]], 48, max_new_tokens=5, repetitions=1)
    ((line,),) = benchmark(with_head, [1], [2])
    assert line.assisted is None
    assert 0 <= line.alpha < 1


def test_generate_is_asked_for_what_the_engine_does() -> None:
    """Left padding and the draft change nothing of transformers' greedy output."""
    target: Any = model(0)
    made: list[torch.Tensor] = []
    plain = decode(target, [[3, 1, 4, 1]], sampling=Sampling(0), max_new_tokens=5).tokens
    original = target.generate

    def keep(*inputs, **settings):
        made.append(original(*inputs, **settings))
        return made[-1]

    target.generate = keep
    generating(target, [[3, 1, 4, 1], [5, 9]], 5)()
    generating(target, [[3, 1, 4, 1]], 5, model(1), 3)()
    assert made[0][0, 4:].tolist() == plain[0]
    assert made[1][0, 4:].tolist() == plain[0]


@pytest.mark.parametrize(("batches", "ks"), [([], [1]), ([1], []), ([1], [0]), ([3], [1])])
def test_bad_input_is_one_clear_line(batches: list[int], ks: list[int]) -> None:
    with pytest.raises(UserError):
        next(benchmark(contest([[1], [2]]), batches, ks))
