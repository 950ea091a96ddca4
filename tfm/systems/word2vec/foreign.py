"""Export and import of word vectors in the forms of word2vec and GloVe, see `tfm.export.formats`."""

import json
import os
from typing import Any

import numpy as np

from tfm.errors import UserError
from tfm.systems.word2vec.model import Word2VecConfig
from tfm.systems.word2vec.skip_grams import WORDS_FILE, SkipGramsConfig
from tfm.systems.word2vec.task import Config, WordVectors
from tfm.systems.word2vec.vector_files import read_vectors, write_binary, write_text

TEXT_FILE, BINARY_FILE = "vectors.txt", "vectors.bin"
LOAD = "from gensim.models import KeyedVectors\n\nvectors = KeyedVectors.load_word2vec_format({arguments})"


def export_word2vec(task: Any, params: dict[str, np.ndarray], folder: str) -> str:
    """Writes the vectors of all words into vectors.txt and, in binary form, into vectors.bin of a folder.

    Returns:
      Python code that loads the binary file, in which FOLDER stands for the folder.

    Raises:
      UserError: if the task does not learn word vectors.
    """
    vectors = _find_vectors(task, params)
    write_text(os.path.join(folder, TEXT_FILE), task.words, vectors, header=True)
    write_binary(os.path.join(folder, BINARY_FILE), task.words, vectors)
    return LOAD.format(arguments=f'"FOLDER/{BINARY_FILE}", binary=True')


def export_glove(task: Any, params: dict[str, np.ndarray], folder: str) -> str:
    """Writes the vectors of all words into vectors.txt of a folder, without a header.

    Returns:
      Python code that loads the file, in which FOLDER stands for the folder.

    Raises:
      UserError: if the task does not learn word vectors.
    """
    write_text(os.path.join(folder, TEXT_FILE), task.words, _find_vectors(task, params), header=False)
    return LOAD.format(arguments=f'"FOLDER/{TEXT_FILE}", no_header=True')


def _find_vectors(task: Any, params: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the vectors of the words as centers. word2vec.c writes the same vectors."""
    if not isinstance(task, WordVectors):
        raise UserError(
            f"--format=word2vec and --format=glove write word vectors, but the task is '{task.config.task}'."
        )
    return params["centers"]


def import_vectors(path: str) -> tuple[Any, dict[str, np.ndarray], dict[str, bytes]]:
    """Returns the config, the parameters and the assets of a file of word vectors.

    The file has no counts. They become V / rank, as by Zipf's law, because the words are usually ordered by
    frequency. The file has no vectors of the contexts, so they are 0.

    Raises:
      UserError: if there is no such file, or `read_vectors` raises it.
    """
    if not os.path.isfile(path):
        raise UserError(f"Expected a file of word vectors for --format=word2vec, got {path}.")
    words, vectors = read_vectors(path)
    counts = [[word, max(len(words) // rank, 1)] for rank, word in enumerate(words, 1)]
    data = SkipGramsConfig(kind="text", train=os.path.basename(path), validation="")
    config = Config(model=Word2VecConfig(features=vectors.shape[1]), data=data)
    arrays = {"centers": vectors, "contexts": np.zeros_like(vectors)}
    return config, arrays, {WORDS_FILE: json.dumps(counts).encode()}


EXPORTS = {"word2vec": export_word2vec, "glove": export_glove}
IMPORTS = {"word2vec": import_vectors}
