"""The figures of training: what was learnt, and what it was worth in decoding."""

from collections.abc import Mapping
from typing import Any

from distill.evaluate.report.drawing import Plot, axes, legend, series
from distill.evaluate.report.facts import Curve, Training

Record = Mapping[str, Any]

LOSSES = {"train/loss": "training loss", "validation/kl": "KL on validation rows"}


def curves(training: Training) -> Plot | None:
    """Loss and validation KL over training; None where no run logged any."""
    names = [name for name in LOSSES if name in training.curves]
    if not names:
        return None
    said = []
    with axes() as (view, svg):
        for index, name in enumerate(names):
            curve = training.curves[name]
            style = series(index)
            if len(curve.tokens) > 40:
                style["marker"] = "none"
            view.plot(curve.tokens, curve.values, label=LOSSES[name], **style)
            said.append(f"{LOSSES[name]} from {curve.values[0]:.2f} to {curve.values[-1]:.2f}")
        _over_tokens(view, "per supervised token")
        view.set_ylim(top=1.1 * _largest_after_start([training.curves[name] for name in names]))
        return Plot(
            "Training",
            f"{'; '.join(said)}.",
            svg(),
            "Training loss: the configured objective. KL(p‖q) in nats. The steep start is cut off.",
        )


def alpha_by_tokens(evaluation: Record, training: Training) -> Plot | None:
    """Alpha of every checkpoint as validation, training and evaluation saw it."""
    lines = {
        "validation rows": _points(training, lambda metrics: metrics.get("alpha")),
        "decoded in training": _points(
            training, lambda metrics: metrics.get("decoding", {}).get("alpha")
        ),
        "decoded in evaluation": _measured(evaluation),
    }
    lines = {name: points for name, points in lines.items() if points}
    if not any(len(points) > 1 for points in lines.values()):
        return None
    with axes() as (view, svg):
        for index, (name, points) in enumerate(lines.items()):
            view.plot(*zip(*points, strict=True), label=name, **series(index))
        _over_tokens(view, "alpha")
        said = [
            f"{name}: {', '.join(f'{alpha:.2f} at {tokens:,.0f}' for tokens, alpha in points)}"
            for name, points in lines.items()
        ]
        return Plot(
            "Alpha by tokens trained",
            f"Alpha of the checkpoints. {'. '.join(said)}.",
            svg(),
            "Validation rows are text as it is; decoding follows the target's own samples, which "
            "may be easier or harder to guess.",
        )


def _largest_after_start(curves: list[Curve]) -> float:
    """The largest value after the first twentieth of training."""
    start = max(curve.tokens[-1] for curve in curves) / 20
    return max(
        value
        for curve in curves
        for tokens, value in zip(curve.tokens, curve.values, strict=True)
        if tokens >= start
    )


def _points(training: Training, value: Any) -> list[tuple[float, float]]:
    found = [(metrics["tokens"], value(metrics)) for metrics in training.checkpoints.values()]
    return sorted((tokens, alpha) for tokens, alpha in found if alpha is not None)


def _measured(evaluation: Record) -> list[tuple[float, float]]:
    """Each candidate's tokens trained and alpha in decoding, at the champion's k, first load."""
    tokens = {c["name"]: c["tokens"] for c in evaluation["candidates"]}
    first = evaluation["loads"][0]
    return sorted(
        (tokens[arm["candidate"]], arm["alpha"]["value"])
        for arm in evaluation["table"]
        if (arm["sampling"], arm["batch_size"]) == (first["sampling"], first["batch_size"])
        and arm["num_draft_tokens"] == first["num_draft_tokens"]
        and tokens.get(arm["candidate"]) is not None
    )


def _over_tokens(view: Any, what: str) -> None:
    view.set(xlabel="supervised tokens trained on", ylabel=what)
    view.xaxis.set_major_formatter(_short)
    legend(view)


def _short(tokens: float, _: Any) -> str:
    """A short form of a number, such as 1.5M for 1500000."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(tokens) >= size:
            return f"{tokens / size:g}{unit}"
    return f"{tokens:g}"
