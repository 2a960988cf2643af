"""Muon: its orthogonalisation against float64, its steps against torch's, whole and sharded."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from distill.training import muon
from distill.training.muon import COEFFICIENTS, ITERATIONS, Muon, orthogonalise
from tests.training import ranks


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_orthogonalised_is_the_iteration_in_float64(shape) -> None:
    """The polynomial, five times, on the singular values alone; then they are near 1."""
    matrix = random_matrix(*shape)
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        s = a * s + b * s**3 + c * s**5
    found = orthogonalise(matrix, torch.float32)
    torch.testing.assert_close(found.double(), (u * s) @ vt, rtol=0, atol=1e-5)
    assert 0.6 < s.min() <= s.max() < 1.25


def test_a_zero_gradient_is_no_direction() -> None:
    assert not orthogonalise(torch.zeros(3, 5), torch.float32).any()


def two_steps(optimizer_type: type, **settings) -> Tensor:
    """What two steps with other gradients leave of a matrix of zeros and one of ones."""
    parameters = [nn.Parameter(torch.zeros(24, 40)), nn.Parameter(torch.ones(40, 24))]
    optimizer = optimizer_type(parameters, lr=0.1, weight_decay=0.3, **settings)
    for step in range(2):
        for index, parameter in enumerate(parameters):
            parameter.grad = random_matrix(*parameter.shape, seed=2 * step + index)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_steps_are_those_of_torch_to_its_rounding(monkeypatch, dtype) -> None:
    monkeypatch.setattr(muon, "pick_dtype", lambda name, device: dtype)
    expected = two_steps(torch.optim.Muon, adjust_lr_fn="match_rms_adamw")
    found = two_steps(Muon)
    # An update has a root mean square of 0.02; bf16 keeps eight bits of the mantissa.
    atol = 1e-6 if dtype == torch.bfloat16 else 2e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert found.std() > 0.02


class Products(TorchDispatchMode):
    """Notes the dtype of every matrix product inside."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.dtypes.append(args[-1].dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("native", [False, True])
def test_products_are_bf16_only_where_the_hardware_has_them(monkeypatch, native) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": native})
    with Products() as products:
        two_steps(Muon)
    count = 2 * 2 * 3 * ITERATIONS
    assert products.dtypes == [torch.bfloat16 if native else torch.float32] * count


def test_it_goes_on_from_the_state_of_torchs(monkeypatch) -> None:
    monkeypatch.setattr(muon, "pick_dtype", lambda name, device: torch.bfloat16)
    gradients = [random_matrix(4, 6, seed) for seed in range(3)]
    ends = []
    for switched in (False, True):
        parameter = nn.Parameter(torch.zeros(4, 6))
        former = torch.optim.Muon([parameter], lr=0.1, adjust_lr_fn="match_rms_adamw")
        for number, gradient in enumerate(gradients):
            if number == 2 and switched:
                later = Muon([parameter], lr=1.0)
                later.load_state_dict(former.state_dict())
                former = later
            parameter.grad = gradient.clone()
            former.step()
        ends.append(parameter.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_sharded_steps_are_those_of_one_process(tmp_path: Path) -> None:
    """Two ranks of FSDP2 with shares of unequal size: the whole matrix is orthogonalised."""
    worker = Path(__file__).parent / "fsdp_worker.py"
    folders = [tmp_path / "1", tmp_path / "2"]
    files = [folder / "draft.pt" for folder in folders]
    jobs = [ranks.start(worker, [str(f)], f.parent, n) for n, f in enumerate(files, start=1)]
    ranks.wait([process for job in jobs for process in job], folders)
    alone, sharded = (torch.load(file) for file in files)
    torch.testing.assert_close(sharded, alone, rtol=0, atol=1e-5)
