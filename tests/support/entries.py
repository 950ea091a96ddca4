"""Entry points of external data, as functions of the data.

Each function returns a result or raises a UserError. Anything else is a bug. Hypothesis draws the arguments
in `tests/test_hostile_input.py`.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import re
import shutil

import pytest

from tests.support.pairs import Letters, Pairs
from tests.support.tiny import ids
from tfm.commands import compare
from tfm.commands.overrides import override
from tfm.commands.resumable_output import open_output
from tfm.commands.translate import as_json, as_text, read_lines, translate_file, translate_lines
from tfm.config import changes
from tfm.data.config import SPLITS, PairsConfig
from tfm.data.sources.opening import find_problems, open_pairs
from tfm.data.sources.parallel_text import open_parallel_text
from tfm.data.sources.tables import TableOptions, open_table
from tfm.data.sources.text_files import NULS, find_problem
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.files import load_word_pieces
from tfm.data.tokenizers.protocol import number_words, split_ids
from tfm.errors import UserError
from tfm.export import model_card
from tfm.systems.parsing.treebank import open_treebank
from tfm.systems.parsing.trees import format_tree, read_trees, restore_tree
from tfm.tasks.translation.task import Config
from tfm.training.run_log import METRICS_FILE, read_metrics
from tfm.training.setup import CHECKPOINT_FOLDER
from tfm.workdir import resume, runs
from tfm.workdir.starts import RECORD_FILE, changed_fields, last_start


def overrides(arguments, chosen=None):
    """Returns `chosen`, or the default config, after the command-line arguments change it."""
    return override(chosen or Config(), arguments).config


def saved_config(folder, content):
    """Returns the config of a run whose config.json has some content."""
    write(folder, runs.CONFIG_FILE, content)
    return runs.open_folder(folder).config


def texts(folder, source, target, ending=""):
    """Returns all pairs of two text files with some content."""
    write(folder, f"data.en{ending}", source)
    write(folder, "data.de", target)
    pairs = open_parallel_text(folder, "data", ("en", "de"))
    assert len(pairs.fingerprint) > 64
    return pairs[:]


def table(folder, content, form):
    """Returns all rows of a table with some content. Also reads the rows one by one."""
    write(folder, f"data.{form}", content)
    options = TableOptions(("en", "de"), form, str)
    source = open_table(os.path.join(folder, f"data.{form}"), options)
    rows = source[:]
    assert [source[i] for i in range(len(source))] == rows
    for problem in source.find_problems():
        raise UserError(problem)
    assert all(len(row) == 2 for row in rows)
    return rows


def tokenizer(folder, content):
    """Encodes and decodes a text with a tokenizer file of some content."""
    write(folder, "v.model", content)
    loaded = load_word_pieces(os.path.join(folder, "v.model"))
    ids = loaded.encode(["The big cat, \U0001f600"])[0]
    assert all(0 <= i < len(loaded) for i in ids)
    return loaded.decode(ids), number_words(loaded, ids), split_ids(loaded, ids, 2)


def changed_config(folder, content):
    """Returns the changes that a resumed run finds in a config.json with some content."""
    for name in os.listdir(folder):
        if os.path.isfile(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    os.makedirs(os.path.join(folder, CHECKPOINT_FOLDER, "2"), exist_ok=True)
    for name in (RECORD_FILE, runs.CONFIG_FILE):
        write(folder, name, content)
        with contextlib.suppress(UserError):
            resume.save_config(Config(), folder)
    made = runs.open_folder(folder).config
    return [str(change) for change in changes(made, Config())]


def started(folder, content):
    """Returns the fields that differ from the last start in a record with some content."""
    write(folder, RECORD_FILE, content)
    return changed_fields(last_start(folder).get("config", {}), dataclasses.asdict(Config()))


def data_problems(folder, source, target):
    """Returns the problems that a new run finds in two text files with some content."""
    for name, content in {"train.en": source, "train.de": target, "val.en": b"a", "val.de": b"b"}.items():
        write(folder, name, content)
    data = PairsConfig(
        kind="text", directory=folder, validation="val", cache_dir=os.path.join(folder, "cache")
    )
    problems = find_problems(data, SPLITS)
    if not problems:
        assert len(open_pairs(data, "train")[:]) > 0
    return problems


def treebank(folder, content):
    """Returns all pairs of a treebank with some content. Also restores each tree from its words."""
    write(folder, "data.mrg", content)
    pairs = open_treebank(PairsConfig(directory=folder, cache_dir=folder), "data")[:]
    for words, tokens in pairs:
        found = restore_tree(tokens.split(), words.split())
        assert not found.repairs
        assert list(read_trees([format_tree(found.tree)], "text")) == [found.tree]
    return pairs


def evaluation(folder, content):
    """Checks hypotheses for `compare` whose scores.json has some content."""
    write(folder, "test.de.scores.json", content)
    compare.read_record(os.path.join(folder, "test.de.scores.json"))


NUMBERS = b"0\n1\n2\n3\n4\n"
ORIGIN = json.dumps({"origin": {"beam": 4}, "checksum": hashlib.sha256(NUMBERS).hexdigest()}).encode()


def resumed(folder, content, noted):
    """Resumes a translation after an output with some content and a record of its origin."""
    path = os.path.join(folder, "output")
    for name in ("output", "output.part", "output.part.origin"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
    write(folder, "output.part", content)
    write(folder, "output.part.origin", noted)
    with open_output(path) as target:
        translate_file(
            lambda lines, _: [f"<{line}>" for line in lines], io.BytesIO(NUMBERS), target, {"beam": 4}
        )
    with open(path, "rb") as file:
        done = content[: content.rfind(b"\n") + 1]
        found = file.read()
    assert found.startswith(done)
    assert found.count(b"\n") == 5


def metrics(folder, content):
    """Returns the rows of a metrics.jsonl with some content."""
    write(folder, METRICS_FILE, content)
    rows = read_metrics(folder)
    assert all(-math.inf < row["step"] < math.inf for row in rows)
    return rows


def report(folder, content):
    """Returns the model card of a run whose record of an evaluation has some content."""
    write(folder, "test.de.scores.json", content)
    return model_card.write(Config(), [6], 1, range(1), model_card.read_records(folder, "de"))


def export(folder, sound, name, content):
    """Opens a copy of the export `sound` after replacing the content of a file."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    write(folder, name, content)
    return runs.load(folder)


def token_cache(folder, name, content):
    """Returns the tokens of a cache that is opened after the content of one of its files changed."""
    pairs = Pairs([("ab", "c"), ("", "xyz"), ("q", "")])
    TokenCache.open(pairs, Letters(), folder)
    (made,) = os.listdir(os.path.join(folder, "tokens"))
    write(os.path.join(folder, "tokens", made), name, content)
    cache = TokenCache.open(pairs, Letters(), folder)
    return [(ids(cache, 0, i), ids(cache, 1, i)) for i in range(len(cache))]


class Parrot:
    """A translator without a model that returns given answers."""

    def __init__(self, answers):
        self.answers = answers

    def translate(self, lines, start_index):
        """Returns an answer for each line, in turn."""
        return [self.answers[i % len(self.answers)] for i in range(len(lines))]

    def hypotheses(self, lines, n_best=1, start_index=0, phrases=None):
        """Returns the answers as hypotheses."""
        return [[(text, -1.5)] * n_best for text in self.translate(lines, start_index)]


def translated(content, answers, translator=None):
    """Translates an input file with some content as text and as JSON, and checks the number of lines.

    An input that looks compressed or like UTF-16 is an error.
    """
    translator = translator or Parrot(answers)
    first_line, end, _ = content.partition(b"\n")
    if problem := find_problem(first_line + end, {b"\0": NULS}):
        with pytest.raises(UserError, match=re.escape(problem)):
            list(read_lines(io.BytesIO(content), "en"))
        return ""
    outputs = []
    for form in (as_text, as_json):
        target = io.BytesIO()
        translate_lines(functools.partial(form, translator), io.BytesIO(content), target, language="en")
        outputs.append(target.getvalue())
    lines = content.count(b"\n") + (not content.endswith(b"\n") and len(content) > 0)
    text, rows = (output.decode("utf-8") for output in outputs)
    assert len(text.splitlines()) == text.count("\n") == lines
    assert len([json.loads(row) for row in rows.split("\n")[:-1]]) == rows.count("\n") == lines
    return text


def write(folder, name, content):
    """Writes the bytes of a file in the folder."""
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)
