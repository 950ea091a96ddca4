"""Size, speed and exactness of an exported page: python -m benchmarks.translating_page --workdir=DIR

Exports the run with `tfm export --format=page`, opens the page in a headless Chromium, which has to be
installed, and compares it with JAX on the first sentences of the test split: the logits of the references,
and the translations. Each time covers the search and everything that the page draws of a new sentence.
"""

import functools
import json
import pathlib
import tempfile
import time

import jax
import numpy as np
from absl import app, flags

from tests.support.browser import find_chromium, open_browser
from tests.support.live_page import logits_of_page, wait_for_model
from tfm.data.sources.opening import open_pairs
from tfm.data.tokenizers.protocol import BOS_ID, EOS_ID
from tfm.decoding.batches import pad_ids
from tfm.export.page import make_page
from tfm.workdir import runs

FLAGS = flags.FLAGS
flags.DEFINE_string("workdir", "runs/quickstart", "Folder of a run.")
flags.DEFINE_integer("sentences", 1000, "Sentences to translate.", lower_bound=1)
flags.DEFINE_integer("references", 100, "References whose logits are compared.", lower_bound=1)
WORDS = 10  # of a sentence whose time counts
TRANSLATE = """((text) => {
  const start = performance.now();
  const { example } = inPage.answers.answer({ text, off: [], known: [0, 1] });
  return [example.result, performance.now() - start];
})"""


def compare_logits(page, task, params, pairs):
    """Returns the largest difference of a logit, of all tokens of the references."""
    sources, targets = zip(*pairs, strict=True)
    inputs = [[*text.ids, EOS_ID] for text in task.form.encode_sources(sources)]
    reads = [[BOS_ID, *text.ids] for text in task.form.encode_targets(targets)]
    apply_model = jax.jit(functools.partial(task.model.apply, train=False))
    expected = np.asarray(apply_model({"params": params}, pad_ids(inputs), pad_ids(reads)))
    differences = [
        np.abs(logits_of_page(page, source, read) - logits[: len(read)]).max()
        for source, read, logits in zip(inputs, reads, expected, strict=True)
    ]
    return max(differences)


def main(_):
    run = runs.load(FLAGS.workdir)
    task, params = run.task, run.params
    pairs = list(open_pairs(task.config.data, task.config.data.test))[: FLAGS.sentences]
    sources = [source for source, _ in pairs]
    text = make_page(task, run.variables, FLAGS.workdir, "run")
    print(f"{len(text.encode()) / 1e6:.2f} MB")
    with tempfile.TemporaryDirectory() as folder, open_browser(find_chromium(), f"{folder}/profile") as page:
        path = pathlib.Path(folder, "index.html")
        path.write_text(text, encoding="utf-8")
        start = time.perf_counter()
        page.open(path.as_uri())
        wait_for_model(page)
        print(f"{time.perf_counter() - start:.2f} s until both examples are drawn")
        worst = compare_logits(page, task, params, pairs[: FLAGS.references])
        print(f"{worst:.5f} is the largest difference of a logit, of {FLAGS.references} references")
        answers = [page.evaluate(f"{TRANSLATE}({json.dumps(source)})") for source in sources]
    expected = task.translate(params, sources)
    same = sum(ours == theirs for (ours, _), theirs in zip(answers, expected, strict=True))
    print(f"{same} of {len(sources)} sentences have the translation of tfm translate")
    times = [ms for source, (_, ms) in zip(sources, answers, strict=True) if len(source.split()) == WORDS]
    print(f"{np.median(times):.0f} ms is the median of {len(times)} sentences of {WORDS} words")
    print(f"{max(times):.0f} ms is the largest")


if __name__ == "__main__":
    app.run(main)
