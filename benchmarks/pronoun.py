"""What makes "it" the animal or the street: python -m benchmarks.pronoun --workdir=DIR [--workdir=DIR ...]

Takes runs of the built-in language and its split "pronoun": 250 sentences twice, with an adjective about the
subject and with one about the object, so that "it" becomes the pronoun of the one noun or of the other. The
grammar knows which words these are. For each run it prints

- accuracy: how often the right pronoun is more probable than the other noun's, given the right translation
  up to it; how often the whole right translation is more probable; how often the decoded one has it;
- attention of "it" in the encoder, and of the decoder's position that predicts the pronoun;
- accuracy with each head switched off, with each sublayer, and with each pair of sublayers;
- activation patching: activations of the twin in the place of the sentence's own, at one position; "effect"
  is how far the logits of the two pronouns move to the twin's, 0 % for not at all, 100 % for all the way.

A forward pass over all sentences takes each edit as an argument, so that each kind is one program.
--figure=FILE draws attention, accuracy without a head, and effects of patching, a row for each run.
"""

import fnmatch
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from matplotlib.figure import Figure

from tfm import interpret
from tfm.data.sources.builtin import read_feature
from tfm.data.sources.opening import read_sides
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID, number_words
from tfm.datasets.toy_language import read_pronoun_words
from tfm.decoding.batches import pad_ids
from tfm.errors import UserError
from tfm.visualize.figures import SHARP_DPI, save
from tfm.visualize.plots import TEXT, label_axes
from tfm.workdir import runs

FLAGS = flags.FLAGS
flags.DEFINE_multi_string(
    "workdir", None, "Work directory or export of a run; may be repeated.", required=True
)
flags.DEFINE_string("figure", "", "Path of a PNG file to draw.")
SPLIT = "pronoun"
PRONOUNS = ("er", "sie", "es")
NOUN_ROLES = ("referent", "other noun", "its determiner", "other determiner")
ROLES = (*NOUN_ROLES, "it", "adjective")
KINDS = {
    "encoder": "encoder.*.self_attention",
    "decoder": "decoder.*.self_attention",
    "cross": "decoder.*.cross_attention",
}


class Puzzles(NamedTuple):
    """The sentences of the split as arrays; row 2 n and row 2 n + 1 are twins.

    Attributes:
      inputs: int [B, M], source pieces.
      read: int [B, L], what the decoder reads: the right translation up to the pronoun, behind BOS.
      query: int [B], the position of the decoder that predicts the pronoun: the last of `read`.
      right, wrong: int [B], the pieces of the noun's pronoun and of the other noun's.
      source: {role: bool [B, M]}, pieces of the words in `ROLES`.
      target: {role: bool [B, L]}, pieces read of the first four.
      alike: bool [B], whether the twin's source has as many pieces, so that all positions correspond.
    """

    inputs: np.ndarray
    read: np.ndarray
    query: np.ndarray
    right: np.ndarray
    wrong: np.ndarray
    source: dict[str, np.ndarray]
    target: dict[str, np.ndarray]
    alike: np.ndarray

    @property
    def queries(self) -> dict[str, np.ndarray]:
        """{stack: bool [B, L]}: where activations are patched."""
        return {
            "encoder": self.source["it"],
            "decoder": np.arange(self.read.shape[1]) == self.query[:, None],
        }


def make_puzzles(task):
    """`Puzzles` in the pieces of a task's tokenizer."""
    tokenizer = task.tokenizer
    sides = (*read_sides(task.config.data, SPLIT), read_feature(SPLIT, "wrong"))
    encoded = [[[*ids, EOS_ID] for ids in tokenizer.encode(texts)] for texts in sides]
    words = [[number_words(tokenizer, ids[:-1]) for ids in side] for side in encoded[:2]]
    source, target, reads, first = [], [], [], []
    for row, (english, german, of_subject) in enumerate(read_pronoun_words()):
        source.append(_name_words(english, of_subject, ROLES))
        target.append(_name_words(german, of_subject, NOUN_ROLES))
        first.append(words[1][row].index(german.pronoun))
        reads.append([BOS_ID, *encoded[1][row][: first[row]]])
    inputs, read = pad_ids(encoded[0]), pad_ids(reads)
    right, wrong = (np.array([side[i][at] for i, at in enumerate(first)]) for side in encoded[1:])
    if (right == wrong).any():
        raise UserError("The tokenizer splits pronouns: expected each to begin with a piece of its own.")
    lengths = (inputs > 0).sum(1)
    return Puzzles(
        inputs,
        read,
        np.array(first),
        right,
        wrong,
        _find_pieces(source, words[0], inputs.shape, 0),
        _find_pieces(target, words[1], read.shape, 1),
        lengths == lengths[_twins(len(lengths))],
    )


def _name_words(words, of_subject, roles):
    """{role: number of its word, or None}."""
    nouns, determiners = words[:2], words[2:4]
    order = slice(None) if of_subject else slice(None, None, -1)
    return dict(
        zip(roles, (*nouns[order], *determiners[order], words.pronoun, words.adjective), strict=False)
    )


def _find_pieces(roles, words, shape, shift):
    """{role: bool [B, L]}: the pieces of words, `shift` places further, as far as they are read."""
    found = {role: np.zeros(shape, bool) for role in roles[0]}
    for row, numbers in enumerate(roles):
        for role, number in numbers.items():
            at = np.flatnonzero(np.array(words[row]) == number) + shift
            found[role][row, at[at < shape[1]]] = True
    return found


def _twins(count):
    """The row of each row's twin."""
    return np.arange(count) ^ 1


class Probe:
    """The forward passes over the sentences of one run.

    Attributes:
      attentions: names of all attention modules, by `KINDS`.
      sublayers: names of all sublayers' outputs.
    """

    def __init__(self, model, params, puzzles):
        self._model, self._params, self.puzzles = model, params, puzzles
        points = interpret.list_points(model, puzzles.inputs[:1], puzzles.read[:1])
        self.attentions = {
            kind: [name.removesuffix(".weights") for name in fnmatch.filter(points, f"{glob}.weights")]
            for kind, glob in KINDS.items()
        }
        self.sublayers = [name for name in points if name.endswith(".sublayer_output")]
        self.names = list(itertools.chain(*self.attentions.values()))
        self.heads = points[f"{self.names[0]}.weights"][1].shape[1]
        self._margins = jax.jit(self._compute_margins)
        read = [f"{name}.head_outputs" for name in self.names] + [*self.sublayers, "encoder.output"]
        self._reads = jax.jit(functools.partial(self._run, read=read))(params)[1]

    def _run(self, params, **options):
        inputs = (jnp.asarray(self.puzzles.inputs), jnp.asarray(self.puzzles.read))
        return interpret.run(self._model, params, *inputs, **options)

    def attend(self):
        """{kind: [layers, B, H, M]}: the weights of "it", or of the position that predicts the pronoun."""
        read = [f"{name}.weights" for name in self.names]
        _, found = jax.jit(functools.partial(self._run, read=read))(self._params)
        rows = np.arange(len(self.puzzles.inputs))
        of_it = self.puzzles.source["it"].argmax(1)  # one piece, or its first
        at = {"encoder": of_it, "decoder": self.puzzles.query, "cross": self.puzzles.query}
        return {
            kind: np.stack([np.asarray(found[f"{name}.weights"])[rows, :, at[kind]] for name in names])
            for kind, names in self.attentions.items()
        }

    def margins(self, *, heads=None, sublayers=None, patched=None, positions=None):
        """Logit of the right pronoun less that of the wrong one, [B].

        Args:
          heads: {(attention, head): factor}.
          sublayers: {name: factor}.
          patched: names, or (attention, head) pairs, whose activations are the twin's.
          positions: bool [B, M], where "encoder.output" is; all others at `Puzzles.queries`.
        """
        factors = np.ones((len(self.names), self.heads), np.float32)
        for (name, head), factor in (heads or {}).items():
            factors[self.names.index(name), head] = factor
        of_sublayers = np.array([(sublayers or {}).get(name, 1.0) for name in self.sublayers], np.float32)
        chosen_heads = np.zeros(factors.shape, bool)
        chosen = np.zeros(len(self.sublayers), bool)
        for each in patched or ():
            if isinstance(each, tuple):
                chosen_heads[self.names.index(each[0]), each[1]] = True
            else:
                chosen[self.sublayers.index(each)] = True
        positions = np.zeros(self.puzzles.inputs.shape, bool) if positions is None else positions
        arguments = (self._params, self._reads, factors, of_sublayers, chosen_heads, chosen, positions)
        return np.asarray(self._margins(*arguments))

    def _compute_margins(self, params, reads, factors, of_sublayers, chosen_heads, chosen, positions):
        twin = _twins(len(self.puzzles.inputs))
        queries = {stack: jnp.asarray(at) for stack, at in self.puzzles.queries.items()}

        def edit_point(name, factor, here):
            """Scales by a factor, and takes the twin's where `here`."""

            def edit(value, point):
                del point
                return jnp.where(here, reads[name][twin], value * factor)

            return edit

        edits = {"encoder.output": edit_point("encoder.output", 1.0, positions[..., None])}
        for number, name in enumerate(self.names):
            here = queries[name.partition(".")[0]][..., None] & chosen_heads[number]
            full = f"{name}.head_outputs"
            edits[full] = edit_point(full, factors[number][:, None], here[..., None])
        for number, name in enumerate(self.sublayers):
            here = queries[name.partition(".")[0]] & chosen[number]
            edits[name] = edit_point(name, of_sublayers[number], here[..., None])
        logits, _ = self._run(params, edit=edits)
        rows = jnp.arange(len(twin))
        at_query = logits[rows, self.puzzles.query].astype(jnp.float32)
        return at_query[rows, self.puzzles.right] - at_query[rows, self.puzzles.wrong]


def measure_effects(probe, plain, rows=None, **patch):
    """Mean effect of a patch, and the fraction of choices that turn, both in per cent, over `rows`.

    Counts sentences of which the model is right about both twins.
    """
    twin = _twins(len(plain))
    counted = (plain > 0) & (plain[twin] > 0) & (True if rows is None else rows)
    patched = probe.margins(**patch)
    # The twin's own margin has the two pronouns the other way round.
    effect = (plain - patched) / (plain + plain[twin])
    return 100 * effect[counted].mean(), 100 * (patched < 0)[counted].mean()


def accuracy(margins):
    """Per cent of sentences whose right pronoun is the more probable one."""
    return 100 * float((margins > 0).mean())


def _share(weights, roles):
    """{role: mean of the weight [B, H, M] on its pieces, [H]}, and what is left, in per cent."""
    shares = {role: 100 * (weights * at[:, None]).sum(-1).mean(0) for role, at in roles.items()}
    return shares | {"elsewhere": 100 - sum(shares.values())}


def measure_attention(probe):
    """{kind: {role: per cent [layers, H]}}."""
    puzzles, found = probe.puzzles, {}
    for kind, weights in probe.attend().items():
        roles = puzzles.target if kind == "decoder" else puzzles.source
        shares = [_share(each, roles) for each in weights]
        found[kind] = {role: np.stack([share[role] for share in shares]) for role in shares[0]}
    return found


def measure_translations(task, params):
    """(per cent of whole right translations more probable than wrong ones, per cent decoded right)."""
    sources, right = read_sides(task.config.data, SPLIT)
    wrong = read_feature(SPLIT, "wrong")
    scores = [np.array([each.sum() for each in task.score(params, sources, side)]) for side in (right, wrong)]
    decoded = task.translate(params, sources)
    last = [[word for word in text.split() if word in PRONOUNS][-1:] for text in decoded]
    words = [german for _, german, _ in read_pronoun_words()]
    expected = [[text.split()[each.pronoun]] for text, each in zip(right, words, strict=True)]
    agree = np.mean([a == b for a, b in zip(last, expected, strict=True)])
    return 100 * float((scores[0] > scores[1]).mean()), 100 * float(agree)


def measure(task, params):
    """All that is printed of one run: nested dicts of numbers and arrays."""
    probe = Probe(task.model, params, make_puzzles(task))
    plain = probe.margins()
    whole, decoded = measure_translations(task, params)
    without_heads, head_effects = {}, {}
    for kind, names in probe.attentions.items():
        pairs = [[(name, head) for head in range(probe.heads)] for name in names]
        without_heads[kind] = np.array(
            [[accuracy(probe.margins(heads={p: 0})) for p in row] for row in pairs]
        )
        head_effects[kind] = np.array(
            [[measure_effects(probe, plain, patched=[p])[0] for p in r] for r in pairs]
        )
    count = len(probe.sublayers)
    without_pairs = np.zeros((count, count))
    for i, j in itertools.combinations_with_replacement(range(count), 2):
        off = {probe.sublayers[i]: 0, probe.sublayers[j]: 0}
        without_pairs[i, j] = without_pairs[j, i] = accuracy(probe.margins(sublayers=off))
    puzzles = probe.puzzles
    of_it, adjective = puzzles.source["it"], puzzles.source["adjective"]
    nouns = puzzles.source["referent"] | puzzles.source["other noun"]
    places = {
        "it": of_it,
        "both nouns": nouns,
        "adjective": adjective,
        "it and adjective": of_it | adjective,
        "all but it": ~of_it,
        "all": np.ones_like(of_it),
    }
    by_place = {
        place: measure_effects(probe, plain, puzzles.alike, positions=at) for place, at in places.items()
    }
    return {
        "accuracy": {"pronoun": accuracy(plain), "whole": whole, "decoded": decoded},
        "counted": int(((plain > 0) & (plain[_twins(len(plain))] > 0)).sum()),
        "counted alike": int(((plain > 0) & (plain[_twins(len(plain))] > 0) & puzzles.alike).sum()),
        "attention": measure_attention(probe),
        "without heads": without_heads,
        "sublayers": [_short(name) for name in probe.sublayers],
        "without pairs": without_pairs,
        "head effects": head_effects,
        "sublayer effects": {
            _short(name): measure_effects(probe, plain, patched=[name]) for name in probe.sublayers
        },
        "memory effects": by_place,
    }


def _short(name):
    """ "decoder.layers_1.cross_attention_residual.sublayer_output" -> "decoder 1 cross"."""
    stack, layer, part, _ = name.split(".")
    part = part.removesuffix("_residual").removesuffix("_attention")
    return f"{stack} {layer.rpartition('_')[2]} {part.replace('feed_forward', 'ffn')}"


def print_tables(found):
    """The tables of one run."""
    scores = found["accuracy"]
    print(
        f"accuracy: pronoun {scores['pronoun']:.1f} %, whole translation {scores['whole']:.1f} %, "
        f"decoded {scores['decoded']:.1f} %"
    )
    asking = {
        "encoder": '"it" in the encoder',
        "decoder": "position that predicts the pronoun, self-attention",
        "cross": "position that predicts the pronoun, cross-attention",
    }
    for kind, shares in found["attention"].items():
        print(f"\nattention of: {asking[kind]} (per cent)")
        print("layer head  " + "".join(f"{role:>17}" for role in shares))
        layers, heads = next(iter(shares.values())).shape
        for layer, head in itertools.product(range(layers), range(heads)):
            row = "".join(f"{share[layer, head]:17.1f}" for share in shares.values())
            print(f"{layer:5} {head:4}  {row}")
    for title in ("without heads", "head effects"):
        unit = "accuracy without one head" if title == "without heads" else "effect of the twin's head output"
        print(f"\n{unit} (per cent; a column for each head)")
        for kind, values in found[title].items():
            for layer, row in enumerate(values):
                print(f"{kind:8} {layer}  " + "".join(f"{value:z8.1f}" for value in row))
    print("\naccuracy without two sublayers, on the diagonal without one (per cent)")
    names = found["sublayers"]
    print(" " * 17 + "".join(f"{number:6}" for number in range(len(names))))
    for number, (name, row) in enumerate(zip(names, found["without pairs"], strict=True)):
        print(f"{number:2} {name:14}" + "".join(f"{value:6.1f}" for value in row))
    for title, count in (("sublayer effects", "counted"), ("memory effects", "counted alike")):
        print(f"\n{title} of the twin's activations: effect, choices that turn (per cent of {found[count]})")
        for name, (effect, turned) in found[title].items():
            print(f"{name:18} {effect:z8.1f} {turned:8.1f}")


def draw(results, path):
    """Draws four panels for each run: attention to nouns and adjective, accuracy without a head, effects."""
    panels = (  # title, lowest and highest value, colours
        ("attention to the right noun\nless to the other noun", -90, 90, "PuOr"),
        ("attention to\nthe adjective", 0, 60, "Blues"),
        ("accuracy\nwithout the head", 50, 100, "Blues_r"),
        ("effect of\nthe twin's head", 0, 60, "Blues"),
    )
    figure = Figure(figsize=(4.2, 3.7 * len(results)), layout="constrained")
    grid = np.reshape(figure.subplots(2 * len(results), 2, sharey="row"), (len(results), len(panels)))
    for axes, (name, found) in zip(grid, results.items(), strict=True):
        attention = found["attention"].items()
        values = (
            {
                kind: each["referent"]
                + each["its determiner"]
                - each["other noun"]
                - each["other determiner"]
                for kind, each in attention
            },
            {kind: each.get("adjective", np.full_like(each["referent"], np.nan)) for kind, each in attention},
            found["without heads"],
            found["head effects"],
        )
        for axis, (title, *colours), each in zip(axes, panels, values, strict=True):
            labels = [f"{kind} {layer}" for kind, rows in each.items() for layer in range(len(rows))]
            _draw_heads(axis, np.concatenate([*each.values()]), labels, *colours)
            label_axes(axis, "head", "", f"{name}: {title} (%)")
    save(figure, path, dpi=SHARP_DPI)


def _draw_heads(axis, rows, labels, low, high, colours):
    """A heat map of rows [layers, H], each number in its cell."""
    image = axis.imshow(rows, cmap=colours, vmin=low, vmax=high, aspect="auto")
    for (row, head), value in np.ndenumerate(rows):
        if not np.isnan(value):
            dark = np.mean(image.to_rgba(value)[:3]) < 0.55
            colour = "white" if dark else "black"
            axis.text(head, row, f"{round(value)}", ha="center", va="center", fontsize=TEXT, color=colour)
    axis.set_xticks(range(rows.shape[1]))
    axis.set_yticks(range(len(rows)), labels)


def main(_):
    logging.set_verbosity(logging.WARNING)
    results = {}
    for workdir in FLAGS.workdir:
        run = runs.load(workdir)
        if run.task.config.data.kind != "builtin":
            raise UserError(
                f"Expected a run of the built-in language, got {workdir}: see configs/quickstart.py."
            )
        seed = run.task.config.training.seed
        found = measure(run.task, runs.single_model_variables(run)["params"])
        results[f"seed {seed}"] = found
        print(f"== {workdir}: seed {seed}")
        print_tables(found)
    if FLAGS.figure:
        draw(results, FLAGS.figure)


if __name__ == "__main__":
    app.run(main)
