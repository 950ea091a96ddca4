"""Where data from outside comes in, as functions of it: a good answer, a UserError, or else a finding.

`tests/test_hostile_input.py` calls them with what Hypothesis draws, `tests/helpers/fuzz.py` with what a
fuzzer makes of good examples.
"""

import io
import json
import os
import shutil
import sys
from unittest import mock

from absl import flags

from tests.data.test_batching import Letters, Pairs
from tests.helpers.tiny import ids
from tfm import config
from tfm.commands import cli
from tfm.commands.translate import as_json, as_text, translate_lines
from tfm.data.text import TextPairs
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizer import Vocabulary
from tfm.export import model_card
from tfm.tasks.translation.task import Config
from tfm.training.reporting import METRICS_FILE, read_metrics
from tfm.workdir import runs


def overrides(arguments, chosen=None):
    """The config that a command makes of one (the default one when None) and the arguments."""
    values = flags.FlagValues()
    with mock.patch.object(sys, "argv", ["train.py", *arguments]):
        cli.define_config(config.to_config_dict(chosen or Config()), values)
        cli.parse(sys.argv, values)
    return runs.parse_config(values.config)


def saved_config(folder, content):
    """The config of a work directory whose config.json has this content."""
    write(folder, runs.CONFIG_FILE, content)
    return runs.read_config(folder)


def texts(folder, source, target, ending=""):
    """All pairs of two text files with this content."""
    write(folder, f"data.en{ending}", source)
    write(folder, "data.de", target)
    pairs = TextPairs(os.path.join(folder, "data"), ("en", "de"), os.path.join(folder, "cache"))
    assert len(pairs.fingerprint) > 64
    return pairs[:]


def vocabulary(folder, content):
    """A vocabulary of this content, used once."""
    write(folder, "v.model", content)
    loaded = Vocabulary.load(os.path.join(folder, "v.model"))
    ids = loaded.encode(["The big cat, \U0001f600"])[0]
    assert all(0 <= i < len(loaded) for i in ids)
    return loaded.decode(ids), loaded.words(ids), loaded.split(ids, 2)


def metrics(folder, content):
    """The rows of a metrics.jsonl with this content."""
    write(folder, METRICS_FILE, content)
    return read_metrics(folder)


def report(folder, content):
    """The model card with a report of eval.py of this content."""
    write(folder, "test.de.scores.json", content)
    return model_card.write(Config(), [6], 1, 1, model_card.read_reports(folder, "de"), [])


def export(folder, sound, name, content):
    """A copy of the export `sound`, opened with other content in one of its files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    write(folder, name, content)
    return runs.load(folder)


def token_cache(folder, name, content):
    """A cache in one of whose files is other content, opened: it is as it was, or built again."""
    pairs = Pairs([("ab", "c"), ("", "xyz"), ("q", "")])
    TokenCache.open(pairs, Letters(), folder)
    (made,) = os.listdir(os.path.join(folder, "tokens"))
    write(os.path.join(folder, "tokens", made), name, content)
    cache = TokenCache.open(pairs, Letters(), folder)
    return [(ids(cache, 0, i), ids(cache, 1, i)) for i in range(len(cache))]


class Parrot:
    """A translator without a model: what it translates to, it is told."""

    def __init__(self, answers):
        self.answers = answers

    def translate(self, lines):
        """An answer a line, in turn."""
        return [self.answers[i % len(self.answers)] for i in range(len(lines))]

    def hypotheses(self, lines, n_best):
        """The answers as hypotheses."""
        return [[(text, -1.5)] * n_best for text in self.translate(lines)]


def translated(content, answers, translator=None):
    """The output lines for an input file of this content: as text, and as JSON."""
    translator = translator or Parrot(answers)
    outputs = []
    for form in (as_text, as_json):
        target = io.BytesIO()
        translate_lines(lambda lines, form=form: form(translator, lines), io.BytesIO(content), target)
        outputs.append(target.getvalue())
    lines = content.count(b"\n") + (not content.endswith(b"\n") and len(content) > 0)
    text, rows = (output.decode("utf-8") for output in outputs)
    assert len(text.splitlines()) == text.count("\n") == lines
    assert len([json.loads(row) for row in rows.split("\n")[:-1]]) == rows.count("\n") == lines
    return text


def write(folder, name, content):
    """The bytes into a file of the folder."""
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)
