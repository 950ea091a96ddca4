"""Writes vectors in three forms with gensim, and its scores of them: python make.py (needs gensim 4)."""

import json
import pathlib

import numpy as np
from gensim.models import KeyedVectors

FOLDER = pathlib.Path(__file__).parent
WORDS = ["the", "Paris", "France", "Oslo", "Norway", "paris", "big", "bigger", "small", "smaller", "café"]
QUESTIONS = """\
: capital-common-countries
Paris France Oslo Norway
Oslo Norway Paris France
Paris France Rome Italy
: gram3-comparative
big bigger small smaller
small smaller big bigger
"""
PAIRS = """\
# Word 1\tWord 2\tHuman (mean)
paris\tFrance\t7.5
big\tsmall\t5
oslo\tnorway\t8.25
the\tsmaller\t0.5
the\tunknown\t3
"""

rng = np.random.default_rng(0)
vectors = KeyedVectors(4)
values = rng.normal(size=(len(WORDS), 4)).astype(np.float32)
values[9] = values[8] + values[7] - values[6]  # smaller = small + bigger - big
vectors.add_vectors(WORDS, values)
for number, word in enumerate(WORDS):
    vectors.set_vecattr(word, "count", len(WORDS) - number)
vectors.save_word2vec_format(str(FOLDER / "vectors.txt"))
vectors.save_word2vec_format(str(FOLDER / "vectors.bin"), binary=True)
vectors.save_word2vec_format(str(FOLDER / "glove.txt"), write_header=False)
(FOLDER / "questions.txt").write_text(QUESTIONS, encoding="utf-8")
(FOLDER / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
accuracy, sections = vectors.evaluate_word_analogies(str(FOLDER / "questions.txt"))
_, spearman, unknown = vectors.evaluate_word_pairs(str(FOLDER / "pairs.tsv"))
check = {
    "vectors": vectors.vectors.tolist(),
    "analogies": accuracy,
    "right": {section["section"]: len(section["correct"]) for section in sections[:-1]},
    "wrong": {section["section"]: len(section["incorrect"]) for section in sections[:-1]},
    "spearman": float(spearman.statistic),
    "unknown": float(unknown),
}
(FOLDER / "check.json").write_text(json.dumps(check), encoding="utf-8")
