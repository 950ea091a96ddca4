"""Coverage-guided fuzzing of what comes in: python -m tests.support.fuzz SECONDS FINDINGS [ENTRY ...]

Not part of the tests: needs `pip install atheris`. Each entry, all of `entry_points` if none is named, is
fuzzed for so many seconds. An input that is answered by neither a result nor a UserError ends its entry and
is written into the folder FINDINGS; it becomes an example in tests/test_hostile_input.py and a fix.
"""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import atheris
import pyarrow.parquet

with atheris.instrument_imports(
    include=["tfm", "ml_collections", "tests.support.entries", "numpy.lib", "gzip"]
):
    from tests.support import entries
    from tests.support.tiny import make_config, train_run, write_corpus
    from tfm.checkpoints import manifest
    from tfm.data.tokenizers.files import load_word_pieces
    from tfm.errors import UserError
    from tfm.export.bundle import write_bundle
    from tfm.workdir import bundle, runs

VOCABULARY_FILE = "vocabulary.model"
METRICS = b'{"step": 1, "time": 1.5, "train/loss": 2.0}\n{"step": 2, "validation/bleu": 3.0}\n'
REPORT = (
    b'{"checkpoints": [6], "decoding": {"beam_size": 4}, "sentences": 3, '
    b'"scores": [{"name": "BLEU", "value": 1.5, "signature": "s"}]}'
)


def make_export(folder):
    """A tiny run's export in `folder`/export."""
    write_corpus(folder)
    train_run(make_config(folder, steps=1), folder / "run")
    write_bundle(runs.load(str(folder / "run")), str(folder / "export"), workdir=str(folder / "run"))


def parquet_file():
    """The bytes of a Parquet file."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"en": ["one"], "de": ["eins"]}), file)
    return file.getvalue()


def split(content):
    """Two parts of the input, cut at its first byte 0."""
    first, _, second = content.partition(b"\0")
    return first, second


def arguments(content):
    """Command-line arguments out of the input, a line each."""
    lines = content.decode("utf-8", errors="surrogateescape").replace("\0", "").split("\n")
    return [f"--config{line}" for line in lines if line]


def entry_points(folder):
    """{name: (function of bytes, example of them)} of all entries, with files below `folder`."""
    place = str(folder / "place")
    sound, checkpoints = str(folder / "export"), str(folder / "run" / "checkpoints")
    saved = {name: (folder / "export" / name).read_bytes() for name in os.listdir(sound)}
    tokenizer = load_word_pieces(os.path.join(sound, VOCABULARY_FILE))

    def round_trip(content):
        text = content.decode("utf-8", errors="replace")
        (ids,) = tokenizer.encode([text])
        once = tokenizer.decode(ids)
        assert tokenizer.decode(tokenizer.encode([once])[0]) == once

    return {
        "overrides": (
            lambda x: entries.overrides(arguments(x)),
            b".model.heads=4\n.data.name=a/b\n.training={}",
        ),
        "config": (lambda x: entries.saved_config(place, x), saved["config.json"]),
        "texts": (lambda x: entries.texts(place, *split(x)), b"one\r\ntwo\n\0eins\nzwei"),
        "tsv": (lambda x: entries.table(place, x, "tsv"), b"en\tde\none\teins\n"),
        "csv": (lambda x: entries.table(place, x, "csv"), b'en,de\r\n"one, ""1""",eins\r\n'),
        "jsonl": (lambda x: entries.table(place, x, "jsonl"), b'{"en": "\\u0031", "de": null}\n'),
        "parquet": (lambda x: entries.table(place, x, "parquet"), parquet_file()),
        "round trip": (round_trip, "The cat \u2581 <s> \U0001f600 \u00e9e\u0301".encode()),
        "vocabulary": (lambda x: entries.tokenizer(place, x), saved[VOCABULARY_FILE]),
        "metrics": (lambda x: entries.metrics(place, x), METRICS),
        "report": (lambda x: entries.report(place, x), REPORT),
        "resume": (lambda x: entries.changed_config(place, x), saved["config.json"]),
        "starts": (lambda x: entries.started(place, x), b'{"config": ' + saved["config.json"] + b"}"),
        "header": (
            lambda x: entries.checkpoint_header(place, checkpoints, x),
            pathlib.Path(checkpoints, "1", manifest.FILE).read_bytes(),
        ),
        "data": (lambda x: entries.data_problems(place, *split(x)), b"one\r\ntwo\n\0eins\nzwei"),
        "treebank": (lambda x: entries.treebank(place, x), b"( (S (NP-SBJ (NNP Ann)) (VP (VBZ sleeps))) )\n"),
        "evaluation": (lambda x: entries.evaluation(place, x), REPORT[:-1] + b', "texts": "ab"}'),
        "resumed output": (
            lambda x: entries.resumed(place, *split(x)),
            b"<0>\n<1\0" + entries.ORIGIN,
        ),
        "manifest": (
            lambda x: entries.listed_export(place, sound, x),
            saved["manifest"].partition(b"\n")[2],
        ),
        "cache": (lambda x: entries.token_cache(place, "source.tokens", x), bytes(10)),
        "lines": (
            lambda x: entries.translated(x, [x.decode("utf-8", errors="replace")]),
            "a\r\n\u2028\n\n b".encode(),
        ),
        **{
            f"export {name}": (lambda x, name=name: entries.export(place, sound, name, x), content)
            for name, content in saved.items()
            if name != bundle.CARD_FILE
        },
    }


def fuzz(folder, name, seconds, findings):
    """Fuzzes one entry for so many seconds or up to its first finding; libFuzzer ends the process."""
    folder = pathlib.Path(folder)
    function, example = entry_points(folder)[name]
    seeds = folder / "seeds" / name
    seeds.mkdir(parents=True)
    (seeds / "example").write_bytes(example)
    (folder / "place").mkdir(exist_ok=True)

    def once(content):
        with contextlib.suppress(UserError):
            function(content)

    limits = [f"-max_total_time={seconds}", f"-max_len={4 * len(example) + 1000}", "-timeout=60"]
    limits += ["-rss_limit_mb=8000", f"-artifact_prefix={findings}/"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0", "-print_final_stats=1", str(seeds)], once)
    atheris.Fuzz()


def main():
    seconds, findings, *names = sys.argv[1:]
    os.makedirs(findings, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        make_export(pathlib.Path(folder))
        for name in names or entry_points(pathlib.Path(folder)):
            print(f"=== {name}", flush=True)
            code = "import sys; from tests.support.fuzz import fuzz; fuzz(*sys.argv[1:])"
            command = [sys.executable, "-c", code, folder, name, seconds, os.path.abspath(findings)]
            subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
