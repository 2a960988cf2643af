"""The probe's arithmetic by hand, and its steps on tiny models. Times are not judged."""

import pytest
import torch

from distill.errors import UserError
from distill.evaluate.benchmark.probe import Prospect, advice, probe
from distill.evaluate.benchmark.step_times import Setting, time_steps, verify_steps
from distill.evaluate.report.tables import as_text, prospects_table
from distill.speculative.prediction import Cost
from distill.speculative.sampling import Sampling
from tests.evaluate.conftest import tiny
from tests.tiny import tiny_head

SETTING = Setting(batch_size=2, context=9, vocabulary_size=32, sampling=Sampling())


def prospect(c: float, v: float, ks: tuple[int, ...] = (1, 2, 4)) -> Prospect:
    costs = {k: Cost(c, 1 + (v - 1) * k) for k in ks}
    return Prospect("small", 12_000_000, SETTING, 0.03, 0.03 * c, costs)


def test_ceiling_and_break_even_by_hand() -> None:
    one = prospect(0.1, 1.0)
    assert one.ceiling == pytest.approx(5 / 1.4)
    assert one.break_even is not None
    assert one.break_even.alpha == pytest.approx(0.1)
    assert one.at(0.5) == pytest.approx(1.75 / 1.2)  # k = 2; k = 1 gives 1.5 / 1.1
    assert one.best_k(0.5) == 2


def test_it_says_when_no_draft_can_pay() -> None:
    assert "No draft of these can pay" in advice([prospect(1.2, 1.1), prospect(1.5, 1.1)])
    assert advice([prospect(1.2, 1.1), prospect(0.1, 1.0)]).startswith("Train small")


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0)])
def test_probe_times_each_load_and_draft(sampling: Sampling) -> None:
    settings = [SETTING, Setting(1, 5, 40, sampling)]
    found = list(probe(tiny(0), {"a": tiny(1), "b": tiny(2)}, settings, [1, 3], repetitions=2))
    assert [[one.draft for one in load] for load in found] == [["a", "b"], ["a", "b"]]
    for one in (one for load in found for one in load):
        assert set(one.costs) == {1, 3}
        assert min(one.target_seconds, one.draft_seconds) > 0
    text = as_text(prospects_table([one for load in found for one in load], [0.376]))
    assert "α 0.376" in text
    assert "ceiling" in text


def test_probe_times_a_head_beside_a_draft() -> None:
    target = tiny(0, num_hidden_layers=6)
    drafts = {"draft": tiny(1), "head": tiny_head(torch.arange(0, 40, 2))}
    (found,) = probe(target, drafts, [SETTING], [1, 3], repetitions=2)
    assert [one.draft for one in found] == ["draft", "head"]
    assert all(one.draft_seconds > 0 for one in found)


def test_costs_by_hand_from_the_times_of_the_steps(monkeypatch) -> None:
    """A round of four draft steps takes 0.8 s, a target step 1 s, passes over 2 and 4 tokens more.

    c = 0.8 / 4 / 1; v(1) = 1.1, v(3) = 1.3. At alpha 0.5: k = 1 gives 1.5 / 1.3, k = 3 gives
    1.875 / 1.9; at 0.9 k = 3 gives 3.439 / 1.9. k = 1 breaks even at 1 + a = 1.3.
    """
    seconds = {"verify 1": 1.0, "verify 2": 1.1, "verify 4": 1.3, "draft a": 0.8}

    def timed(steps, repetitions, device):
        assert set(steps) == set(seconds)
        return seconds

    monkeypatch.setattr("distill.evaluate.benchmark.probe.time_steps", timed)
    ((one,),) = probe(tiny(0), {"a": tiny(1)}, [SETTING], [1, 3])
    assert one.costs == {1: Cost(pytest.approx(0.2), 1.1), 3: Cost(pytest.approx(0.2), 1.3)}
    assert (one.target_seconds, one.draft_seconds) == (1.0, pytest.approx(0.2))
    assert one.break_even is not None
    assert one.break_even.alpha == pytest.approx(0.3)
    text = as_text(prospects_table([one], [0.5, 0.6, 0.7, 0.8, 0.9]), 170)
    for shown in (
        "1000.0",
        "200.00",
        "0.200",
        "1.10…1.30",
        "α 0.30",
        "1.15× k1",
        "1.81× k3",
        "2.11×",
    ):
        assert shown in text


def test_steps_leave_the_context_as_it_was() -> None:
    steps = verify_steps(tiny(0), [1, 4], SETTING)
    with torch.inference_mode():
        for _ in range(30):
            steps[4]()  # were the cache to grow, positions would pass the context's block


def test_steps_run_forwards_then_backwards_with_warm_up() -> None:
    ran: list[str] = []
    steps = {name: lambda name=name: ran.append(name) for name in "ab"}
    seconds = time_steps(steps, 2, torch.device("cpu"))
    assert "".join(ran) == "abba" * 2
    assert set(seconds) == {"a", "b"}


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="values of k from 1"):
        next(probe(tiny(0), {"a": tiny(1)}, [SETTING], [0]))
