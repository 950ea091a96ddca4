"""Tables of labelled texts, and the config of a tiny run that classifies them."""

import numpy as np

from tfm.systems.bert.classification import Config
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.bert.model import BertConfig

CONLL_FILES = {split: f"{split}.conll" for split in ("train", "validation", "test")}
TAGS = {"dog": "noun", "cat": "noun", "runs": "verb", "sleeps": "verb", "the": "-", "big": "-"}
SPLITS = {"train": 30, "validation": 8, "test": 9}
BERT = BertConfig(
    encoder_layers=2, d_model=24, d_ff=32, heads=2, dropout=0.1, attention_dropout=0.0, max_positions=32
)


def write_tables(folder):
    """Writes a TSV file for each split: a text, a word, whether the text has it, how often, and tags.

    The same sentences are in a CoNLL file, where the animals are entities.
    """
    rng = np.random.default_rng(0)
    for split, size in SPLITS.items():
        lines, columns = ["text\tsecond\tlabel\ttags\tnumber"], []
        for _ in range(size):
            words = [*rng.choice(list(TAGS), rng.integers(1, 5)), rng.choice(["dog", "cat"]), "runs"]
            second = rng.choice(["dog", "cat"])
            label = "yes" if second in words else "no"
            number = f"{words.count(second) / 2:g}"
            tags = " ".join(TAGS[word] for word in words)
            lines.append("\t".join([" ".join(words), second, label, tags, number]))
            columns += [f"{word} {'I-ANIMAL' if TAGS[word] == 'noun' else 'O'}" for word in words] + [""]
        (folder / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")
        (folder / f"{split}.conll").write_text("\n".join(columns), encoding="utf-8")


def make_config(folder, model=BERT, **data):
    """Returns the config of a run on the tables in `folder`."""
    fields = {f: f"{f}.tsv" for f in SPLITS} | {"vocabulary_size": 280, "max_length": 32, "batch_tokens": 96}
    folders = {"directory": str(folder), "cache_dir": str(folder / "cache")}
    return Config(model=model, data=LabelledConfig(**fields | folders | data))
