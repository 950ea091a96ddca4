"""What the machine does to a run: full disks, folders that refuse, clocks set back, damaged caches."""

import errno
import gzip
import itertools
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.conditions import can_mount, open_folder, smallest_files, unwritable, with_mounts
from tests.test_batches import Letters, Pairs, random_pairs
from tests.test_vocabulary import TEXTS
from tests.tiny import make_config, train_run, write_config_file
from tfm import artefact, cli, config, runs
from tfm.data import cache, text
from tfm.data.cache import TokenCache
from tfm.data.vocabulary import Vocabulary
from tfm.errors import UserError
from tfm.files import refusal, require_space, whole_file, whole_folder
from tfm.training.checkpoints import Checkpoints
from tfm.training.reporting import Reporter
from tfm.visualize import draw_curves

ROOT = pathlib.Path(__file__).parent.parent
LIMIT = 64  # bytes: less than any of the files below


def write_file(folder):
    with whole_file(os.path.join(folder, "old"), "w") as file:
        file.write("x" * 1000)


WRITERS = {
    "file": write_file,
    "config": lambda folder: config.save(make_config(pathlib.Path("/data")), os.path.join(folder, "old")),
    "vocabulary": lambda folder: Vocabulary.train(TEXTS, 310, os.path.join(folder, "old")),
    "cache": lambda folder: TokenCache.open(random_pairs(50), Letters(), folder),
    "unpacked": lambda folder: text.TextPairs(os.path.join(folder, "data"), ("en", "de"), folder),
    "picture": lambda folder: draw_curves([], os.path.join(folder, "old")),
}


def files_of(folder):
    return {path: path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_what_cannot_be_written_is_one_sentence_and_leaves_all_as_it_was(name):
    with open_folder() as folder:
        for language in ("en", "de"):
            pathlib.Path(folder, f"data.{language}.gz").write_bytes(gzip.compress(b"line\n" * 100))
        pathlib.Path(folder, "old").write_text("before")
        before = files_of(folder)
        with smallest_files(LIMIT), pytest.raises(UserError, match=r"Cannot write .*File too large; raise"):
            WRITERS[name](folder)
        assert files_of(folder) == before
        for made in ("tokens", "unpacked"):
            shutil.rmtree(os.path.join(folder, made), ignore_errors=True)
        with unwritable(folder), Answer() as answer:
            WRITERS[name](folder)
        assert "Permission denied; check the permissions" in answer[0]
        assert files_of(folder) == before
        WRITERS[name](folder)


class Answer(list):
    """Catches what a command would answer with, whether it comes as a UserError or as the system's error."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        self.append(str(error) if kind is UserError else refusal(error))
        return True


def test_an_export_that_finds_no_space_leaves_nothing(tiny_run, tmp_path):
    run = runs.load(str(tiny_run))
    with smallest_files(20_000), pytest.raises(UserError, match=r"Cannot write .*out: File too large"):
        artefact.save(run, str(tmp_path / "out"), workdir=str(tiny_run))
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_find_no_space_end_the_run_and_do_not_hang(tmp_path):
    """The thread of tensorboardX died in silence; ten points later its queue was full: training waited."""
    answers = []

    def report():
        reporter = Reporter(str(tmp_path))
        try:
            for step in range(1000):
                reporter.write(step, {f"metric/{i}": 0.5 for i in range(5)})
        except UserError as error:
            answers.append(str(error))
        with pytest.raises(UserError):
            reporter.close()
        answers.append("closed")

    with smallest_files(10_000):
        worker = threading.Thread(target=report, daemon=True)
        worker.start()
        worker.join(timeout=20)
    assert not worker.is_alive()
    assert "File too large" in answers[0]
    assert answers[1:] == ["closed"]


def test_a_checkpoint_is_not_begun_without_space_for_it(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    require_space(tmp_path, free // 2)
    with pytest.raises(UserError, match=r"Cannot write .* are left; free some space"):
        require_space(tmp_path, 2 * free)


def test_the_edge_answers_the_machine_and_shows_bugs(capsys):
    full = os.strerror(errno.ENOSPC)
    stored = ValueError(
        f"""RESOURCE_EXHAUSTED: Error writing local file "/run/x": {full} [os_error_code='28']"""
    )
    recorded = RuntimeError(f"Failed to finalize: write() failed: {full}; writing /run/a-0; at byte 4")
    for error, sentence in (
        (OSError(errno.EROFS, "?", "/run/y"), "/run/y: Read-only file system; make it writable"),
        (
            FileNotFoundError(errno.ENOENT, "?", b"/run/z"),
            "/run/z: No such file or directory; check the path",
        ),
        (OSError(errno.ENOSPC, "?"), "a file or the output: No space left on device; free some space"),
        (stored, "/run/x: No space left on device; free some space"),
        (recorded, "/run/a-0: No space left on device; free some space"),
    ):
        with pytest.raises(SystemExit) as end, cli.answering():
            raise error
        assert end.value.code == 2
        assert sentence in capsys.readouterr().err
    for bug in (ValueError("shapes differ"), ConnectionResetError(errno.ECONNRESET, "?"), OSError("?")):
        with pytest.raises(type(bug)), cli.answering():
            raise bug
    with pytest.raises(SystemExit) as end, cli.answering():
        raise BrokenPipeError
    assert end.value.code == 141
    assert capsys.readouterr().err == ""


def test_what_is_written_has_the_permissions_that_the_user_gives_files(tmp_path):
    """Others of the group share a cache; the temporary files of the library are for their owner alone."""
    before = os.umask(0o027)
    try:
        write_file(tmp_path)
        with whole_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "folder")] == [0o640, 0o750]


# Caches.


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def cut(path):
    os.truncate(path, path.stat().st_size - 2)


def archive(path):
    with open(path, "wb") as file:
        np.savez(file, a=np.zeros(3))


def swap(path):
    np.save(path, np.load(path)[::-1])


DAMAGE = {
    "tokens cut": lambda folder: cut(folder / "source.npy"),
    "ends cut": lambda folder: cut(folder / "target_ends.npy"),
    "ends missing": lambda folder: (folder / "source_ends.npy").unlink(),
    "all missing": lambda folder: [path.unlink() for path in folder.iterdir()],
    "empty": lambda folder: (folder / "target.npy").write_bytes(b""),
    "zeros, as after a power cut": lambda folder: (folder / "target_ends.npy").write_bytes(bytes(600)),
    "other order": lambda folder: swap(folder / "target_ends.npy"),
    "other type": lambda folder: np.save(folder / "source.npy", np.load(folder / "source.npy") * 0.5),
    "other shape": lambda folder: np.save(folder / "source.npy", np.uint16(3)),
    "an archive": lambda folder: archive(folder / "source.npy"),
    "a pickle": lambda folder: (folder / "source.npy").write_bytes(
        pickle.dumps(Bomb(folder.parent / "boom"))
    ),
    "a pickle in an array": lambda folder: np.save(
        folder / "source.npy", np.array([Bomb(folder.parent / "boom")], object), allow_pickle=True
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_cache_is_made_again_and_nothing_in_it_is_run(name, tmp_path, caplog):
    pairs = random_pairs(30)
    sound = TokenCache.open(pairs, Letters(), str(tmp_path))
    expected = [(sound.source(i).tolist(), sound.target(i).tolist()) for i in range(30)]
    (folder,) = (tmp_path / "tokens").iterdir()
    DAMAGE[name](folder)
    with caplog.at_level("WARNING", "tfm"):
        again = TokenCache.open(pairs, Letters(), str(tmp_path))
    assert "Tokenising again: the cache" in caplog.text
    assert [(again.source(i).tolist(), again.target(i).tolist()) for i in range(30)] == expected
    assert list((tmp_path / "tokens").iterdir()) == [folder]


def test_the_cache_of_another_version_is_left_alone(tmp_path, monkeypatch):
    pairs = Pairs([("ab", "c")])
    TokenCache.open(pairs, Letters(), str(tmp_path))
    (old,) = (tmp_path / "tokens").iterdir()
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    DAMAGE["tokens cut"](old)  # whatever the other version has there
    before = files_of(old)
    assert TokenCache.open(pairs, Letters(), str(tmp_path)).source(0).tolist() == [97, 98, 2]
    assert files_of(old) == before
    assert len(list((tmp_path / "tokens").iterdir())) == 2


def two_at_a_time(code, folder):
    """(stdout, stderr, exit code) of two processes that run the code with the folder and a name each."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, str(folder)]
    both = [subprocess.Popen([*command, f"builder-{i}"], cwd=ROOT, **pipes) for i in range(2)]
    return [(*each.communicate(), each.returncode) for each in both]


BUILDER = """
import pathlib, sys, time
from tests.test_batches import Letters, random_pairs
from tfm.data.cache import TokenCache
folder, me = pathlib.Path(sys.argv[1]), sys.argv[2]
class Slow(type(random_pairs(1))):
    def __getitem__(self, index):  # both build before either is done
        (folder / me).touch()
        while len(list(folder.glob("builder-*"))) < 2:
            time.sleep(0.01)
        return super().__getitem__(index)
cache = TokenCache.open(Slow(random_pairs(30)), Letters(), str(folder / "cache"))
print(sum(int(cache.source(i).sum()) for i in range(30)))
"""


PREPARER = """
import pathlib, sys, time
from tfm.data.language import builder, grammar
folder, me = pathlib.Path(sys.argv[1]), sys.argv[2]
grammar.SIZES = builder.SIZES = dict.fromkeys(grammar.SIZES, 6)
generate = builder.generate
def wait(split):  # all prepare before any is done
    (folder / me).touch()
    while len(list(folder.glob("builder-*"))) < 2:
        time.sleep(0.01)
    return generate(split)
builder.generate = wait
print(len(builder.prepare(str(folder / "language")).as_data_source(split="train")))
"""


@pytest.mark.processes
def test_two_processes_that_prepare_one_data_set_at_a_time_both_get_it(tmp_path):
    results = two_at_a_time(PREPARER, tmp_path)
    assert [(out, code) for out, _, code in results] == [(b"6\n", 0)] * 2, results
    assert [path.name for path in (tmp_path / "language" / "tfm_language").iterdir()] == ["1.0.0"]


@pytest.mark.processes
def test_two_processes_that_build_one_cache_at_a_time_both_get_it(tmp_path):
    results = two_at_a_time(BUILDER, tmp_path)
    assert [code for *_, code in results] == [0, 0], results
    assert results[0][0] == results[1][0]
    (folder,) = (tmp_path / "cache" / "tokens").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        *("source.npy", "source_ends.npy", "target.npy", "target_ends.npy")
    ]


def test_data_that_is_deleted_while_it_is_read_can_be_read_to_its_end(tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"data.{language}").write_text("".join(f"{language} {i}\n" for i in range(100)))
    pairs = text.TextPairs(str(tmp_path / "data"), ("en", "de"), str(tmp_path))
    opened = TokenCache.open(pairs, Letters(), str(tmp_path))
    shutil.rmtree(tmp_path)
    assert pairs[99] == ("en 99", "de 99")
    assert opened.source(99).tolist() == [*map(ord, "en 99"), 2]


def test_a_vocabulary_whose_text_fails_half_way_leaves_nothing(tmp_path):
    def texts():
        yield from TEXTS
        raise UserError("line 9 is not UTF-8")

    with pytest.raises(UserError, match="line 9"):
        Vocabulary.train(texts(), 310, str(tmp_path / "v.model"))
    assert list(tmp_path.iterdir()) == []


# Whole runs.


def test_a_clock_that_is_set_back_changes_no_rate_no_checkpoint_and_no_cache(corpus, tmp_path, monkeypatch):
    settings = make_config(corpus, steps=4, log_every=1, eval_every=4, checkpoint_every=1, keep=2)
    hours = itertools.count(int(time.time() // 3600), -1)
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    rows = train_run(settings, tmp_path / "run")
    assert rows[-1]["time"] < rows[0]["time"]
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
    assert all(row["train/tokens_per_second"] > 0 for row in rows if "train/loss" in row)
    checkpoints = Checkpoints(str(tmp_path / "run" / "checkpoints"))
    assert checkpoints.steps() == [3, 4]
    checkpoints.close()


def command(*arguments):
    return " ".join([sys.executable, *map(str, arguments)])


MOUNTS = pytest.mark.skipif(not can_mount(), reason="needs unshare and unprivileged user namespaces")
ENVIRONMENT = {"cwd": ROOT, "env": os.environ | {"JAX_PLATFORMS": "cpu"}}


@MOUNTS
@pytest.mark.processes
def test_a_run_whose_disk_is_full_goes_on_when_there_is_space(corpus, tmp_path):
    (tmp_path / "disk").mkdir()
    settings = write_config_file(tmp_path, make_config(corpus))
    train = command("train.py", f"--config={settings}", '--workdir="$0"')
    result = with_mounts(
        f'mount -t tmpfs -o size=960k none "$0"; {train}; echo $? >&2; '
        f'mount -o remount,size=90m "$0"; {train}; echo $? >&2; ls "$0/checkpoints" >&2',
        tmp_path / "disk",
        **ENVIRONMENT,
    )
    first, _, second = result.stderr.partition("\n2\n")
    assert first.splitlines()[-1].startswith("error: Cannot "), result.stderr
    assert first.endswith("; free some space there and start again.")
    assert "Going on from step 2" in second
    assert second.splitlines()[-5:] == ["0", "2", "3", "4", "6"]


@MOUNTS
@pytest.mark.processes
def test_a_run_that_cannot_be_written_translates_and_says_what_cannot_be_done(tiny_run, tmp_path):
    (tmp_path / "in").write_text("red dog\n")
    translate = command("-m", "tfm.translate", '--workdir="$0"', f"--input={tmp_path / 'in'}")
    evaluate = command("eval.py", '--workdir="$0"', "--samples=0", "--config.decoding.beam_size=1")
    result = with_mounts(
        'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; '
        f"{translate}; echo $? >&2; {evaluate}; echo $? >&2",
        tiny_run,
        **ENVIRONMENT,
    )
    *before, zero, error, two = result.stderr.splitlines()
    assert (zero, two) == ("0", "2"), result.stderr
    assert not any("Traceback" in line or "Warning" in line for line in before)
    assert error.startswith("error: Cannot write")
    assert "test.de.hypotheses: Read-only file system; make it writable" in error
    assert "BLEU" in result.stdout
