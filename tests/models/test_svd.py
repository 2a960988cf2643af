"""V = 40 tokens, D = 12 target dimensions, d = 4."""

import pytest
import torch

from distill.models.svd import HeadStatistics, factorise, measure_statistics

V, D, WIDTH = 40, 12, 4


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(0)
    head = torch.randn(V, D, generator=generator, dtype=torch.float64) + 3.0
    hidden = torch.randn(500, D, generator=generator, dtype=torch.float64) * torch.linspace(
        0.1, 3, D, dtype=torch.float64
    )
    counts = torch.randint(0, 200, (V,), generator=generator).double()
    return head, hidden, HeadStatistics(counts, hidden.T @ hidden / len(hidden))


def centred_error(head, hidden, rows, projection, weight):
    """Mean over positions of sum_v weight_v (logit - projected logit)^2, free of a common shift."""
    error = hidden @ head.T - hidden @ projection @ rows.T
    error = error - (error @ weight)[:, None] / weight.sum()
    return (error.square() @ weight).mean()


def test_full_width_keeps_the_distribution_exactly(case):
    head, hidden, statistics = case
    for given in (None, statistics):
        factor = factorise(head, D, given)
        kept = torch.softmax(hidden @ factor.projection @ factor.rows.T, -1)
        assert torch.allclose(kept, torch.softmax(hidden @ head.T, -1), atol=1e-9)


def test_error_is_the_discarded_spectrum_and_no_other_factor_is_better(case):
    head, hidden, statistics = case
    weight = statistics.token_counts + 1
    factor = factorise(head, WIDTH, statistics)
    error = centred_error(head, hidden, factor.rows, factor.projection, weight)
    centred = head - (weight @ head) / weight.sum()
    root = torch.linalg.cholesky(statistics.second_moment)
    spectrum = torch.linalg.svdvals(weight.sqrt()[:, None] * (centred @ root))
    assert error == pytest.approx(spectrum[WIDTH:].square().sum().item(), rel=1e-6)
    plain = factorise(head, WIDTH, None)
    assert error < 0.9 * centred_error(head, hidden, plain.rows, plain.projection, weight)


def test_a_common_row_costs_no_dimension(case):
    head, _, _ = case
    moved = factorise(head + torch.arange(D), WIDTH, None)
    kept = factorise(head, WIDTH, None)
    assert torch.allclose(moved.rows @ moved.rows.T, kept.rows @ kept.rows.T, atol=1e-8)


def test_padding_rows_are_not_counted_and_get_values(case):
    head, _, statistics = case
    padded = torch.cat([head, torch.zeros(8, D, dtype=torch.float64)])
    assert factorise(padded, WIDTH, statistics).rows.shape == (V + 8, WIDTH)


def test_directions_that_never_occur_stay_finite(case):
    head, _, statistics = case
    moment = torch.zeros(D, D, dtype=torch.float64)
    moment[0, 0] = 1
    factor = factorise(head, WIDTH, HeadStatistics(statistics.token_counts, moment))
    assert factor.rows.isfinite().all()
    assert factor.projection.isfinite().all()


def test_statistics_are_the_hidden_states_the_head_sees(tiny):
    model = tiny.model()
    ids = torch.arange(12).view(2, 6)
    measured = measure_statistics(model, [ids[:1], ids[1:]], torch.ones(202))
    with torch.no_grad():
        hidden = model(ids, output_hidden_states=True).hidden_states[-1].flatten(0, 1).double()
    assert torch.allclose(measured.second_moment, hidden.T @ hidden / 12, atol=1e-5)


def test_no_sequence_is_an_error(tiny):
    with pytest.raises(ValueError, match="no sequence"):
        measure_statistics(tiny.model(), [], torch.ones(3))
