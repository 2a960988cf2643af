"""The fused loss equals the plain one, for every divergence, head and dtype."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distill.errors import UserError
from distill.losses import Head, HiddenSignal, Mixture, alpha, fused, fused_loss, kernels
from distill.losses.fused import BLOCK_ROWS, chunk_tokens
from distill.losses.kernels import autograd_kernel
from distill.losses.mixture import BY_NAME

T, V, PADDED_V, STUDENT_WIDTH, TEACHER_WIDTH = 41, 30, 37, 5, 8


def alone(name: str, **options: float) -> Mixture:
    """The mixture of this divergence alone."""
    return Mixture.of({name: 1.0}, **options)


forward_kl, reverse_kl, jsd, total_variation, acceptance, lk = (alone(name) for name in BY_NAME)
ALL = [forward_kl, reverse_kl, jsd, total_variation, acceptance, lk]
ALL += [alone("jsd", beta=0.2), Mixture.of({"forward_kl": 0.5, "total_variation": 2.0})]
LABELLED = Mixture.of({"forward_kl": 1.0, "cross_entropy": 0.3})


def linear(hidden: Tensor, head: Tensor, other: Tensor, teacher: Tensor, **options):
    return fused_loss(hidden, Head(head), HiddenSignal(other, Head(teacher)), **options)


class Pair:
    """Random hidden states and heads; the student's head has padding rows with large logits."""

    def __init__(self, dtype: torch.dtype = torch.float64, **head: float):
        generator = torch.Generator().manual_seed(0)
        make = partial(torch.randn, generator=generator)
        self.hidden = make(T, STUDENT_WIDTH).to(dtype).requires_grad_()
        self.weight = make(PADDED_V, STUDENT_WIDTH).to(dtype)
        self.weight[V:] *= 30
        self.weight.requires_grad_()
        self.bias = make(PADDED_V).to(dtype).requires_grad_()
        self.student = Head(self.weight, self.bias, **head)
        self.teacher_hidden = make(T, TEACHER_WIDTH).to(dtype)
        self.teacher = Head(make(V, TEACHER_WIDTH).to(dtype), make(V).to(dtype))

    def logits(self) -> tuple[Tensor, Tensor]:
        return self.student.logits(self.hidden)[:, :V], self.teacher.logits(self.teacher_hidden)

    def fused(self, **options):
        signal = HiddenSignal(self.teacher_hidden, self.teacher)
        return fused_loss(self.hidden, self.student, signal, **options)

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(3 * loss, (self.hidden, self.weight, self.bias))


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_size", [1, 18, 128])
def test_equals_the_plain_loss(divergence, temperature: float, chunk_size: int) -> None:
    pair = Pair()
    loss, sums = pair.fused(divergence=divergence, temperature=temperature, chunk_size=chunk_size)
    student, teacher = pair.logits()
    plain = divergence(student, teacher, temperature).sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)
    agree = (student.argmax(-1) == teacher.argmax(-1)).sum()
    assert torch.allclose(sums["divergence"], plain)
    assert torch.allclose(sums["alpha"], alpha(student, teacher).sum())
    assert (sums["agreement"], sums["tokens"]) == (agree, T)
    assert not any(value.requires_grad for value in sums.values())


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("head", [{"scale": 0.5}, {"softcap": 3.0}, {"scale": 2.0, "softcap": 4.0}])
def test_scale_and_soft_cap_of_either_head(divergence, temperature: float, head) -> None:
    pair = Pair(**head)
    pair.teacher = replace(pair.teacher, scale=0.7, softcap=2.5)
    loss, _ = pair.fused(divergence=divergence, temperature=temperature, chunk_size=10)
    plain = divergence(*pair.logits(), temperature).sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that are made inside, the dtypes of [·, V], and who made them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()
        self.dtypes: set[torch.dtype] = set()
        self.called: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        tensors = [one for one in made if isinstance(one, Tensor)]
        self.seen |= {tuple(one.shape) for one in tensors}
        self.dtypes |= {one.dtype for one in tensors if one.shape[-1:] == (V,)}
        self.called.append(str(func))
        return out


@pytest.mark.parametrize("divergence", [forward_kl, lk])
def test_logits_exist_for_a_chunk_of_tokens_only(divergence) -> None:
    pair = Pair()
    with Shapes() as shapes:
        pair.fused(divergence=divergence, chunk_size=16)[0].backward()
    wide = [shape for shape in shapes.seen if shape[-1:] == (V,) and len(shape) > 1]
    assert max(shape[-2] for shape in wide) == BLOCK_ROWS < T  # a chunk's buffer is whole blocks


def test_a_chunk_is_as_many_tokens_as_the_draft_is_wide() -> None:
    assert [chunk_tokens(width, None) for width in (192, 512, 2048)] == [512, 512, 2048]
    assert chunk_tokens(2048, 100) == 100
    head, hidden, other = torch.randn(3, 600), torch.randn(700, 600), torch.randn(700, 2)
    with Shapes() as shapes:
        linear(hidden, head, other, torch.randn(3, 2))
    assert {shape[0] for shape in shapes.seen if shape[1:] == (600,)} >= {600, 100}


def test_gradient_matches_finite_differences() -> None:
    pair = Pair()

    def fused(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        head = Head(weight, bias, softcap=5.0)
        signal = HiddenSignal(pair.teacher_hidden, pair.teacher)
        return fused_loss(hidden, head, signal, chunk_size=16)[0]

    assert torch.autograd.gradcheck(fused, (pair.hidden, pair.weight, pair.bias), fast_mode=True)


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_padding_rows_are_cut_off_either_side(padded: str) -> None:  # cases VOC-PAD, VOC-ZERO
    torch.manual_seed(0)
    hidden, other = torch.randn(7, 4), torch.randn(7, 6)
    head, teacher = torch.randn(12, 4), torch.randn(12, 6)
    expected = linear(hidden, head, other, teacher)
    noise = [torch.cat([w, 50 * torch.randn(5, w.shape[1])]) for w in (head, teacher)]
    if padded == "student":
        found = linear(hidden, noise[0], other, teacher)
    else:
        found = linear(hidden, head, other, noise[1])
    both = linear(hidden, noise[0], other, noise[1], vocabulary_size=12)
    assert expected[0] == found[0] == both[0]
    assert expected[1] == found[1] == both[1]


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
def test_no_token_is_a_zero_on_the_graph(divergence) -> None:  # case KD-EMPTY
    pair = Pair(torch.float32)
    signal = HiddenSignal(pair.teacher_hidden[:0], pair.teacher)
    loss, sums = fused_loss(pair.hidden[:0], pair.student, signal, divergence=divergence)
    assert loss.item() == 0.0
    assert all(value.item() == 0.0 for value in sums.values())
    assert all(not gradient.any() for gradient in pair.gradients(loss))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("divergence", [forward_kl, jsd])
@pytest.mark.parametrize("ids", [8192, 14])  # one block, and three with a short last one
def test_half_precision(dtype: torch.dtype, divergence, ids: int, monkeypatch) -> None:
    monkeypatch.setattr(fused, "BLOCK_IDS", ids)
    pair = Pair(dtype)
    with Shapes() as shapes:
        loss, _ = pair.fused(divergence=divergence, chunk_size=16)
    assert ((ids, STUDENT_WIDTH) in shapes.seen) == (ids < V)
    exact = Pair()
    with torch.no_grad():
        for name in ("hidden", "weight", "bias"):
            getattr(exact, name).copy_(getattr(pair, name).double())
        exact.teacher_hidden.copy_(pair.teacher_hidden.double())
        exact.teacher.weight.copy_(pair.teacher.weight.double())
    plain = divergence(*exact.logits()).sum()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=0.02)
    for ours, theirs in zip(pair.gradients(loss), exact.gradients(plain), strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < 0.03 * theirs.norm()


def test_fp32_parameters_with_bf16_products() -> None:
    pair = Pair(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with Shapes() as shapes:
            loss, _ = pair.fused(compute_dtype=torch.bfloat16)
        assert torch.bfloat16 in shapes.dtypes
        exact, _ = pair.fused()
    plain = forward_kl(*pair.logits()).sum()
    found, expected = pair.gradients(exact), pair.gradients(plain)
    # The caller's autocast does not reach in: it would round the gradients' products too.
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))
    assert loss.item() == pytest.approx(plain.item(), rel=0.02)
    assert exact.item() == pytest.approx(plain.item(), rel=1e-5)
    assert all(gradient.dtype == torch.float32 for gradient in pair.gradients(loss))


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl, jsd, acceptance])
def test_a_bias_of_minus_infinity_removes_a_token(divergence) -> None:
    pair = Pair()
    with torch.no_grad():
        pair.bias[3] = -torch.inf
        pair.teacher.bias[3] = -torch.inf
    loss, _ = pair.fused(divergence=divergence)
    plain = divergence(*pair.logits()).sum()
    assert loss.isfinite()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


def test_hard_labels() -> None:
    pair = Pair()
    labels = torch.arange(T) % V
    loss, _ = pair.fused(divergence=LABELLED, temperature=0.6, labels=labels, chunk_size=9)
    plain = LABELLED(*pair.logits(), 0.6, labels).sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


def test_nobody_asked_for_a_gradient_nobody_makes_one() -> None:
    pair = Pair()

    def products() -> int:
        with Shapes() as shapes:
            pair.fused()
        return shapes.called.count("aten.mm.out") + shapes.called.count("aten.mm.default")

    assert products() > 0  # logits are made with a bias, by addmm
    with torch.no_grad():
        assert products() == 0


def test_frozen_student_parts_get_no_gradient() -> None:
    pair = Pair()
    pair.weight.requires_grad_(False)
    loss, _ = pair.fused()
    loss.backward()
    assert pair.weight.grad is None
    assert pair.hidden.grad is not None
    with torch.no_grad():
        assert torch.equal(pair.fused()[0], loss.detach())


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    pair = Pair()
    loss, _ = pair.fused()
    loss.backward(retain_graph=True)
    first = pair.weight.grad.clone()
    loss.backward()
    assert torch.equal(pair.weight.grad, 2 * first)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"divergence": LABELLED, "labels": torch.ones(3, dtype=torch.long)}, "same tokens"),
        ({"labels": torch.ones(T, dtype=torch.long)}, "labels exactly when"),
        ({"divergence": LABELLED}, "labels exactly when"),
        ({"vocabulary_size": 0}, "real ids"),
        ({"vocabulary_size": 31}, "real ids"),
        ({"chunk_size": 0}, "1 or more"),
        ({"temperature": 0.0}, "above 0"),
        (
            {"divergence": LABELLED, "labels": torch.ones(T, 1, dtype=torch.long)},
            "one value a token",
        ),
    ],
)
def test_refusals_name_the_remedy(change: dict, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Pair().fused(**change)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("divergence", [*ALL, alone("lk", eta=1.0), LABELLED])
def test_compiled_equals_eager(divergence, temperature) -> None:
    pair = Pair(torch.float32)
    settings = {"divergence": divergence, "temperature": temperature, "chunk_size": 18}
    if divergence is LABELLED:
        settings["labels"] = torch.arange(T) % V
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # else it runs uncompiled
        loss, sums = pair.fused(compiled=True, **settings)
    plain, expected = pair.fused(**settings)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    assert all(torch.allclose(sums[name], expected[name]) for name in sums)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_compiled_or_not_as_asked(monkeypatch) -> None:
    asked = []
    kernel = autograd_kernel(jsd)
    monkeypatch.setattr(kernels, "_compiled_kernel", lambda one: asked.append(one) or kernel)
    assert torch.equal(
        Pair().fused(divergence=jsd, compiled=True)[0], Pair().fused(divergence=jsd)[0]
    )
    assert asked == [jsd]


def test_rows_that_no_token_fills_are_zero(monkeypatch) -> None:
    """Compiled, whole blocks are scored: whatever lay in that memory would be a loss of nan."""
    seen = []
    monkeypatch.setattr(
        torch.Tensor,
        "new_empty",
        lambda like, *shape, dtype=None: torch.full(shape, torch.nan, dtype=dtype or like.dtype),
    )
    kernel = autograd_kernel(jsd)

    def watched(student, teacher, *rest):
        seen.append(bool(student.isfinite().all() and teacher.isfinite().all()))
        return kernel(student, teacher, *rest)

    monkeypatch.setattr(kernels, "_compiled_kernel", lambda _: watched)
    Pair().fused(divergence=jsd, compiled=True)
    assert len(seen) == 2
    assert all(seen)


def test_a_bias_gradient_is_summed_in_fp32() -> None:
    pair = Pair(torch.float32)
    loss, _ = pair.fused(compute_dtype=torch.bfloat16)
    found = torch.autograd.grad(loss, pair.bias)[0]
    assert (found != found.bfloat16()).any()


def test_states_are_read_in_the_dtype_of_their_head() -> None:
    pair = Pair(torch.float32)
    wanted = pair.fused()[0]
    pair.teacher_hidden = pair.teacher_hidden.half()
    assert pair.fused()[0].item() == pytest.approx(wanted.item(), rel=1e-2)
