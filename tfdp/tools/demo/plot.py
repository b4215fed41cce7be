"""The curves of two training runs on top of each other."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tfdp.tools.demo.train import TrainingRun

_PANELS = {"loss": "loss", "accuracy": "accuracy"}
_STYLES: tuple[dict[str, Any], ...] = (
    {"linewidth": 6, "alpha": 0.35},
    {"linewidth": 1.5, "linestyle": "--"},
)


def plot_curves(runs: Mapping[str, TrainingRun], title: str, path: pathlib.Path) -> None:
    """Draws loss and accuracy per epoch, on the training and the test split, as a PNG.

    Args:
      runs: Two runs by their names. The first is drawn broad, the second thin and dashed on top, so
        that both can be seen where they agree.
      title: The figure's title.
      path: The path of the file to write.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (metric, label) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        for (name, run), style in zip(runs.items(), _STYLES, strict=True):
            epochs = range(1, len(run.history[metric]) + 1)
            markers = "o" if len(epochs) == 1 else None
            for key, split, color in (
                (metric, "training", "tab:blue"),
                (f"val_{metric}", "test", "tab:orange"),
            ):
                axes.plot(
                    epochs,
                    run.history[key],
                    label=f"{split}, {name}",
                    color=color,
                    marker=markers,
                    **style,
                )
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
