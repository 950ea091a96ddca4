"""What counting predicts of hidden tokens: python -m benchmarks.bert_baselines --workdir=runs/bert_pydoc

Prints the accuracies in per cent of two baselines on the tokens that a run of masked_language_modeling
predicts: "unigram" predicts the most frequent token, "bigram" the token that most often follows the token
before, as the model sees it.
"""

import json

import numpy as np
from absl import app, flags

from tfm.workdir import runs

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
flags.DEFINE_string("split", "test", "Split to predict.")


def count_tokens(task):
    """Returns the counts of tokens [V] and of pairs of tokens [V, V] in epoch 0 of the training split."""
    size = len(task.tokenizer)
    unigrams, bigrams = np.zeros(size, int), np.zeros((size, size), int)
    for batch in task.open_split("train", 0)[0].in_order():
        tokens = batch["tokens"].copy()
        rows, places = np.nonzero(batch["weights"])
        tokens[rows, batch["predicted"][rows, places]] = batch["targets"][rows, places]
        np.add.at(unigrams, tokens[tokens > 2], 1)
        is_pair = tokens[:, 1:] > 2
        np.add.at(bigrams, (tokens[:, :-1][is_pair], tokens[:, 1:][is_pair]), 1)
    return unigrams, bigrams


def main(_):
    """Prints the accuracies of both baselines."""
    task = runs.load(FLAGS.workdir).task
    unigrams, bigrams = count_tokens(task)
    following = np.where(bigrams.any(-1), bigrams.argmax(-1), unigrams.argmax())
    right = {"unigram": 0, "bigram": 0}
    count = 0
    for batch in task.open_split(FLAGS.split, 0)[0].in_order():
        rows, places = np.nonzero(batch["weights"])
        targets = batch["targets"][rows, places]
        before = batch["tokens"][rows, batch["predicted"][rows, places] - 1]
        right["unigram"] += int((targets == unigrams.argmax()).sum())
        right["bigram"] += int((targets == following[before]).sum())
        count += len(targets)
    print(
        json.dumps({name: round(100 * value / count, 2) for name, value in right.items()} | {"tokens": count})
    )


if __name__ == "__main__":
    app.run(main)
