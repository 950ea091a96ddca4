"""Translates texts with a trained run: python -m tfm.translate --workdir=DIR < source.txt > translation.txt

One line out for every line in; empty lines stay empty.
"""

import dataclasses
import itertools
import logging
import sys

from tfm import runs

log = logging.getLogger(__name__)
LINES_AT_ONCE = 1024  # sorted by length into batches; what memory holds of the input


class Translator:
    """A trained run as a function of texts.

    >>> Translator.load("runs/quickstart").translate(["The dog sleeps."])  # doctest: +SKIP
    ['Der Hund schläft.']
    """

    def __init__(self, run):
        self._run = run

    @classmethod
    def load(cls, workdir, *, checkpoint="best", average_last=1):
        """See `tfm.runs.load`."""
        return cls(runs.load(workdir, checkpoint=checkpoint, average_last=average_last))

    def translate(self, sentences, **decoding):
        """Texts -> texts. Further arguments replace fields of the run's `DecodingConfig`: beam_size=1."""
        chosen = dataclasses.replace(self._run.task.config.decoding, **decoding)
        return self._run.task.translate(self._run.params, sentences, chosen)


def translate_lines(translator, source, target, at_once=LINES_AT_ONCE):
    """Translates the lines of a binary file to another, some at once, each flushed when it is done."""
    number = 0
    while chunk := list(itertools.islice(source, at_once)):
        lines = [_decoded(line, number + i) for i, line in enumerate(chunk, 1)]
        number += len(chunk)
        for translation in translator.translate(lines):
            target.write(translation.encode("utf-8") + b"\n")
        target.flush()


def _decoded(line, number):
    """A line of text; what is not UTF-8 in it becomes a replacement character, with a warning."""
    text = line.rstrip(b"\r\n").decode("utf-8", errors="replace")
    if "\ufffd" in text:
        log.warning("Line %s is not UTF-8 throughout; replaced what is not", number)
    return text


def main():
    translator = Translator(cli.load_run())
    at_once = 1 if sys.stdin.isatty() else LINES_AT_ONCE
    translate_lines(translator, sys.stdin.buffer, sys.stdout.buffer, at_once)


if __name__ == "__main__":
    from tfm import cli

    cli.define_finished_run()
    cli.run(main)
