"""An EAGLE-3 head computed from its tensors by their names, one row, no cache: slow and plain.

Written from FORMATS.md, not from the engine. S entries, H width, v reduced vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def outputs(head, embedding: Tensor, tokens: Tensor, states: Tensor) -> Tensor:
    """Pre-norm outputs [S, H] of entries with these tokens [S] and input states [S, H]."""
    tensors = dict(head.named_parameters())
    config = head.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    D = tensors["midlayer.self_attn.q_proj.weight"].shape[0] // heads
    S = len(tokens)

    def weight(name: str) -> Tensor:
        return tensors[f"midlayer.{name}.weight"]

    def norm(x: Tensor, scale: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt() * scale

    def rotated(x: Tensor) -> Tensor:
        theta = config.rope_parameters["rope_theta"]
        rate = theta ** (-torch.arange(0, D, 2, dtype=x.dtype) / D)
        angle = torch.arange(S, dtype=x.dtype)[:, None, None] * rate
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    x = torch.cat(
        (
            norm(embedding[tokens], weight("input_layernorm")),
            norm(states, weight("hidden_norm")),
        ),
        -1,
    )
    q = rotated((x @ weight("self_attn.q_proj").T).view(S, heads, D))
    k = rotated((x @ weight("self_attn.k_proj").T).view(S, groups, D))
    v = (x @ weight("self_attn.v_proj").T).view(S, groups, D)
    mixed = []
    for h in range(heads):
        g = h // (heads // groups)
        scores = q[:, h] @ k[:, g].T / D**0.5
        future = torch.ones(S, S).triu(1).bool()
        mixed.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[:, g])
    x = states + torch.cat(mixed, -1) @ weight("self_attn.o_proj").T
    y = norm(x, weight("post_attention_layernorm"))
    gate = F.silu(y @ weight("mlp.gate_proj").T)
    return x + (gate * (y @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T


def logits(head, states: Tensor) -> Tensor:
    """Logits [S, v] of pre-norm outputs [S, H]."""
    scale = states.square().mean(-1, keepdim=True) + head.config.rms_norm_eps
    return (states * scale.rsqrt() * head.norm.weight) @ head.lm_head.weight.T


def features(target, tokens: list[int], reads: tuple[int, ...]) -> Tensor:
    """The target's states [n, 3H] at all positions, lowest layer first, from one plain pass."""
    with torch.no_grad():
        found = target(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    return torch.cat([found.hidden_states[number][0] for number in reads], -1)


def chain(
    head, embedding: Tensor, context: list[int], states: Tensor, drawn: list[int]
) -> tuple[list[int], list[Tensor]]:
    """The argmax of each draft behind a context of n tokens, and its logits [v].

    states: the target's features [n − 1, 3H] at all positions but the last. drawn: the drafts that
    are read on from.
    """
    tokens = torch.tensor(context[1:])
    inputs = states @ head.fc.weight.T
    drafts: list[int] = []
    found: list[Tensor] = []
    for token in drawn:
        out = outputs(head, embedding, tokens, inputs)
        found.append(logits(head, out[-1:])[0])
        own = int(found[-1].argmax())
        drafts.append(own + int(head.d2t[own]))
        tokens = torch.cat((tokens, torch.tensor([token])))
        inputs = torch.cat((inputs, out[-1:]))
    return drafts, found


def unrolled(head, embedded: Tensor, features: Tensor, base: int, steps: int) -> list[Tensor]:
    """Normed outputs [H] of the entries base … base + steps − 1 of a chain that begins at `base`.

    embedded [S, H] and features [S, 3H] of one row. No entry behind `base` sees a feature: each
    reads the output before it.
    """
    states = [head.fc.weight @ one for one in features[: base + 1]]
    found: list[Tensor] = []
    for entry in range(base, base + steps):
        out = outputs(head, embedded, torch.arange(entry + 1), torch.stack(states))[-1]
        scale = out.square().mean() + head.config.rms_norm_eps
        found.append(out * scale.rsqrt() * head.norm.weight)
        states.append(out)
    return found
