"""Pictures of a run: python -m tfm.visualize --workdir=DIR

Draws into DIR/figures the loss and learning-rate curves, and for each sentence the attention of every head in
the encoder, the decoder and between them. --sentence="..." (repeatable) replaces the sentences of the paper's
authors about the tired animal and the wide street.
"""

from tfm import terminal

if __name__ == "__main__":
    terminal.end_at_once()  # the imports take seconds

import dataclasses
import os

import jax.numpy as jnp
import numpy as np
from absl import flags
from matplotlib.figure import Figure

from tfm import runs
from tfm.data.vocabulary import BOS_ID, EOS_ID
from tfm.decoding import decode
from tfm.files import whole_file
from tfm.inspection import attention_of
from tfm.training.reporting import read_metrics

SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
PARTS = {
    "encoder": ("encoder", "mixer"),
    "decoder": ("decoder", "mixer"),
    "cross": ("decoder", "cross_attention"),
}


def draw_curves(rows, path):
    """Loss, accuracy or BLEU, and learning rate over the steps; `rows` as `read_metrics` gives them."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = (
        ("nats per target token", ("train/loss", "train/nll", "validation/nll")),
        ("validation BLEU, greedy", ("validation/bleu",)),
        ("learning rate", ("train/learning_rate",)),
    )
    for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 30 else None)
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend()
    _save(figure, path)


def attention_maps(task, params, sentence):
    """The attention of a translation by the model's own greedy search.

    Returns:
      {"encoder", "decoder", "cross": float array [layers, H, L, M]} and the labels of source and target
      places; a decoder's place is labelled with the piece that it reads.
    """
    source = [*task.vocabulary.encode([sentence])[0], EOS_ID]
    greedy = dataclasses.replace(task.config.decoding, beam_size=1, samples=0)
    target = decode(task.model, params, [source], greedy)[0][0].ids
    read = [BOS_ID, *target[:-1]]
    _, collected = task.model.apply(
        {"params": params}, jnp.array([source]), jnp.array([read]), train=False, mutable=["attention"]
    )
    maps = {name: np.asarray(attention_of(collected, *where))[:, 0] for name, where in PARTS.items()}
    return maps, task.vocabulary.pieces(source), task.vocabulary.pieces(read)


def draw_attention(weights, queries, keys, title, path):
    """One panel a head, one row a layer: weights [layers, H, L, M], brightness is weight.

    Labels and title are drawn as they are: what stands between dollars is no formula.
    """
    as_it_is = {"parse_math": False}
    layers, heads = weights.shape[:2]
    width, height = 1.2 + 0.17 * len(keys), 0.9 + 0.17 * len(queries)
    figure = Figure(figsize=(heads * width, layers * height + 0.4), layout="constrained")
    figure.suptitle(title, **as_it_is)
    for layer, row in enumerate(figure.subplots(layers, heads, squeeze=False)):
        for head, axes in enumerate(row):
            axes.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=1)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
            axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6, **as_it_is)
            axes.set_yticks(range(len(queries)), queries, fontsize=6, **as_it_is)
    _save(figure, path)


def draw_run(run, workdir, sentences):
    """All pictures of a run; returns their paths."""
    folder = os.path.join(workdir, "figures")
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, "curves.png")]
    draw_curves(read_metrics(workdir), paths[0])
    for number, sentence in enumerate(sentences, 1):
        maps, source, target = attention_maps(run.task, runs.one_model(run), sentence)
        places = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
        for part, weights in maps.items():
            path = os.path.join(folder, f"attention-{number}-{part}.png")
            draw_attention(weights, *places[part], f"{part} attention: {sentence}", path)
            paths.append(path)
    return paths


def _save(figure, path):
    with whole_file(path) as file:
        figure.savefig(file, dpi=110, format="png")


def main():
    arguments = flags.FLAGS
    for path in draw_run(cli.load_run(), arguments.workdir, arguments.sentence or SENTENCES):
        print(path)


if __name__ == "__main__":
    from tfm import cli

    cli.define_finished_run()
    flags.DEFINE_multi_string("sentence", None, "Source sentence whose attention to draw; may be repeated.")
    cli.run(main)
