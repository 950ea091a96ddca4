"""Cases of the contracts of readers and of batches, and the functions that write their files."""

import functools
import json
from xml.sax.saxutils import escape

import numpy as np
from PIL import Image

from tests.support.corpora import WRITERS, write_text, write_tsv
from tests.support.files import CACHE
from tests.support.pairs import Letters, open_cache, pair_config, random_pairs, train_batches
from tests.support.reader_contracts import ROWS, Reader, change_texts
from tfm.data.batches import documents as document_batches
from tfm.data.batches import pairs as pair_batches
from tfm.data.batches.schedule import Batches
from tfm.data.config import DocumentsConfig, ImagesConfig, PairsConfig
from tfm.data.images import ArrayImages, ImageBatches, open_images
from tfm.data.source import hold
from tfm.data.sources.opening import open_documents, open_pairs
from tfm.data.token_cache import TokenCache
from tfm.data.tokenizers.characters import Characters
from tfm.systems.bert.labelled_texts import LabelledConfig
from tfm.systems.parsing.treebank import TREEBANK
from tfm.systems.t_dmca.summaries import SummariesConfig
from tfm.systems.word2vec import corpus as word_corpus
from tfm.systems.word2vec.skip_grams import SkipGramsConfig

LANGUAGES = ("en", "de")
REVERSED = ({"source_language": "de", "target_language": "en"},)


def open_source(folder, kind, **fields):
    config = PairsConfig(
        **{"kind": kind, "directory": str(folder), "cache_dir": str(folder / CACHE)} | fields
    )
    return open_pairs(config, "train")


def open_texts(folder, **fields):
    fields = {"directory": str(folder), "cache_dir": str(folder / CACHE)} | fields
    return open_documents(DocumentsConfig(**fields), "train")


def write_two_corpora(folder, rows):
    """Writes the first two rows to a.* and the other rows to b.*. Removes the tags from the sources."""
    for stem, part in (("a", rows[:2]), ("b", rows[2:])):
        write_text(folder, [(source.partition("> ")[2] or source, target) for source, target in part], stem)


def write_tmx(folder, rows):
    """Writes a translation memory with a language more than is read, and with a unit that has only one."""
    units = [
        "<tu><tuv xml:lang='fr'><seg>x</seg></tuv>"
        f"<tuv xml:lang='en-GB'><seg>{escape(source)}</seg></tuv>"
        f"<tuv lang='DE'>\n<seg>\n  {escape(target)} </seg></tuv></tu>\n"
        for source, target in rows
    ]
    units.append("<tu><tuv xml:lang='en'><seg>alone</seg></tuv></tu>")
    header = "<?xml version='1.0'?>\n<!DOCTYPE tmx SYSTEM 'tmx14.dtd'>\n<tmx version='1.4'><header/><body>\n"
    (folder / "train.tmx").write_text(f"{header}{''.join(units)}</body></tmx>\n", encoding="utf-8")


def write_segments(texts):
    return "".join(f'<seg id="{number}">{escape(text)}</seg>\n' for number, text in enumerate(texts, 1))


def write_test_set(folder, rows):
    """Writes a test set of WMT in XML, with references by two translators."""
    sources, targets = zip(*rows, strict=True)
    sides = [f'<src lang="en"><p>{write_segments(sources)}</p></src>']
    for name, texts in (("A", targets), ("B", [f"{text}!" for text in targets])):
        sides.append(f'<ref lang="de" translator="{name}"><p>{write_segments(texts)}</p></ref>')
    content = f'<dataset id="x"><doc id="1" origlang="en">{"".join(sides)}</doc></dataset>\n'
    (folder / "train.xml").write_text(content, encoding="utf-8")


def write_sgml(folder, rows):
    for root, role, language, texts in zip(
        ("srcset", "refset"), ("src", "ref"), LANGUAGES, zip(*rows, strict=True), strict=True
    ):
        content = f'<{root} setid="x">\n<DOC docid=a sysid="ref">\n{write_segments(texts)}</DOC>\n</{root}>\n'
        (folder / f"train-{role}.{language}.sgm").write_text(content, encoding="utf-8")


PAIRS = {
    "text": Reader(write_text, functools.partial(open_source, kind="text"), options=REVERSED),
    "translation memory": Reader(
        write_tmx, functools.partial(open_source, kind="text", train="train.tmx"), options=REVERSED
    ),
    "test set in XML": Reader(write_test_set, functools.partial(open_source, kind="text", train="train.xml")),
    "test set in SGML": Reader(write_sgml, functools.partial(open_source, kind="text")),
    "several files": Reader(
        write_two_corpora,
        functools.partial(open_source, kind="text", train="a,b"),
        options=[{"train": "b,a"}, {"train": "a"}, {"tags": "<x>,"}],
    ),
    "tagged corpora": Reader(
        write_two_corpora,
        functools.partial(open_source, kind="text", train="a,b", tags="<s1>,<s2>"),
        rows=[(f"<s{1 + (i > 1)}> {source}", target) for i, (source, target) in enumerate(ROWS)],
        options=[{"tags": tags} for tags in ("", "<s2>,<s1>", "<s1>,", ",<s2>", "<s1>,<s1>")],
    ),
}


def write_trees(folder, rows):
    """Writes one flat tree for each row of (words, tokens)."""
    trees = []
    for words, tokens in rows:
        label, *tags, _ = tokens.split()
        leaves = " ".join(f"({tag} {word})" for tag, word in zip(tags, words.split(), strict=True))
        trees.append(f"{label} {leaves})\n")
    (folder / "train.mrg").write_text("".join(trees), encoding="utf-8")


TREES = {
    "treebank": Reader(
        write_trees,
        functools.partial(open_source, kind=TREEBANK),
        changes=lambda row: change_texts(row)[:1],
        rows=[("Ann sleeps .", "(S NNP VBZ . )S"), ("go", "(FRAG VB )FRAG"), ("ä b", "(NP DT NN )NP")],
    )
}


def write_conll(folder, rows):
    """Writes a word and its tag on each line, and a blank line after each sentence."""
    pairs = [zip(words.split(), tags.split(), strict=True) for words, tags in rows]
    sentences = ("".join(f"{word} {tag}\n" for word, tag in sentence) for sentence in pairs)
    (folder / "train.conll").write_text("\n".join(sentences), encoding="utf-8")


def open_conll(folder):
    config = LabelledConfig(kind="conll", directory=str(folder), train="train.conll")
    return open_pairs(config, "train")


TAGS = {
    "columns of CoNLL": Reader(
        write_conll,
        open_conll,
        rows=[("Ann sleeps .", "B-PER O O"), ("go", "O"), ("ä b", "O B-LOC")],
    )
}


def write_table(folder, rows, form):
    WRITERS[form](folder / f"train.{form}", rows)


def write_tsv_with_ids(folder, rows):
    write_tsv(folder / "train.tsv", [("0", *row) for row in rows], header=("id", *LANGUAGES))


def save_dataset(folder, rows):
    import datasets

    columns = dict(zip(LANGUAGES, map(list, zip(*rows, strict=True)), strict=True))
    datasets.Dataset.from_dict(columns).save_to_disk(folder / "train")


open_table = functools.partial(open_source, kind="table")
TABLES = {
    "tsv": Reader(write_tsv_with_ids, open_table, options=[*REVERSED, {"source_column": "id"}]),
    **{
        form: Reader(functools.partial(write_table, form=form), open_table, options=REVERSED)
        for form in ("csv", "jsonl", "parquet")
    },
    "huggingface": Reader(
        save_dataset,
        functools.partial(open_source, kind="huggingface"),
        options=REVERSED,
        may_be_compressed=False,
        package="datasets",
    ),
}


def write_documents(folder, rows, separator):
    (folder / "train").write_text(separator.join(text for (text,) in rows), encoding="utf-8")


def write_files(folder, rows):
    for number, (text,) in enumerate(rows):
        (folder / f"part-{number}").write_text(text, encoding="utf-8")


def write_features(folder, rows):
    lines = [json.dumps({"text": text, "id": str(i)}) + "\n" for i, (text,) in enumerate(rows)]
    (folder / "train.jsonl").write_text("".join(lines), encoding="utf-8")


LINES = [(text,) for _, text in ROWS]
PARAGRAPHS = [*LINES, ("of two\nlines",)]
MARK = " SUMMARY: "


def write_summaries(folder, rows):
    write_tsv(folder / "train.tsv", [text.split(MARK) for (text,) in rows], header=("article", "summary"))


def open_summaries(folder, **fields):
    columns = {"feature": "article", "summary_column": "summary", "before_summary": MARK}
    config = SummariesConfig(kind="table", directory=str(folder), train="train.tsv", **columns | fields)
    return open_documents(config, "train")


def write_lines(folder, rows):
    (folder / "train").write_text("\n".join(text for (text,) in rows), encoding="utf-8")


def open_lines(folder):
    return word_corpus.open_lines(SkipGramsConfig(kind="text", directory=str(folder), train="train"), "train")


DOCUMENTS = {
    "summaries in columns": Reader(
        write_summaries,
        open_summaries,
        [(f"{article}{MARK}{summary}",) for article, summary in ROWS if "\u2028" not in article],
        options=[{"before_summary": " TL;DR "}],
    ),
    "lines of word2vec": Reader(write_lines, open_lines, LINES),
    "lines": Reader(
        functools.partial(write_documents, separator="\n"),
        functools.partial(open_texts, documents="line"),
        LINES,
        options=[{"documents": "file"}],
    ),
    "paragraphs": Reader(
        functools.partial(write_documents, separator="\n\n"),
        functools.partial(open_texts, documents="paragraph"),
        PARAGRAPHS,
        options=[{"documents": "file"}, {"documents": "line"}],
    ),
    "files": Reader(write_files, functools.partial(open_texts, train="part-*"), PARAGRAPHS),
    "rows of a table": Reader(
        write_features, functools.partial(open_texts, kind="table"), PARAGRAPHS, options=[{"feature": "id"}]
    ),
}


def write_images(folder, rows):
    arrays = {}
    for split, part in (("train", rows), ("validation", rows[1:])):
        arrays[f"{split}_images"] = np.array([image for image, _ in part], np.uint8)
        arrays[f"{split}_labels"] = np.array([label for _, label in part])
    np.savez(folder / "images.npz", **arrays)


def open_arrays(folder, split="train"):
    return open_images(ImagesConfig(kind="arrays", file=str(folder / "images.npz")), split)


def write_pictures(folder, rows):
    """Writes a bitmap for each row, whose size does not depend on its content, and a table of labels."""
    for split, part in (("train", rows), ("validation", rows[1:])):
        lines = ["file_name,label"]
        for number, (image, label) in enumerate(part):
            name = f"{split}-{number}.bmp"
            Image.fromarray(np.array(image, np.uint8)).save(folder / name)
            lines.append(f"{name},{label}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


def open_pictures(folder, split="train"):
    cache = str(folder / CACHE)
    config = ImagesConfig(kind="table", directory=str(folder), cache_dir=cache)
    return open_images(config, split).with_label_names(["0", "1", "2", "3"])


def change_image(row):
    image, label = np.array(row[0]), row[1]
    image[2, 1] += 1
    return [(image.tolist(), label), (row[0], label + 1)]


PIXELS = np.random.default_rng(0).integers(0, 200, (4, 3, 2, 3)).tolist()
IMAGES = {
    "arrays": Reader(
        write_images,
        open_arrays,
        rows=[(image, label) for image, label in zip(PIXELS, [0, 2, 1, 0], strict=True)],
        changes=change_image,
        options=[{"split": "validation"}],
        may_be_compressed=False,
    ),
    "table of pictures": Reader(
        write_pictures,
        open_pictures,
        rows=[(image, label) for image, label in zip(PIXELS, [0, 2, 1, 0], strict=True)],
        changes=change_image,
        options=[{"split": "validation"}],
        may_be_compressed=False,
    ),
}


def open_batches(folder, seed, *, host_index=0, host_count=1, corpora=(), **fields):
    config = pair_config(**{"batch_tokens": 365} | fields)  # not a multiple of the number of hosts
    hosts = {"host_index": host_index, "host_count": host_count}
    return train_batches(open_cache(folder), config, seed, corpora=corpora, **hosts)


mixture = functools.partial(open_batches, corpora=(150, 50), kind="text", train="a,b", mixing="1,1")
PAIR_BATCHES = {name: functools.partial(open_batches, batching=name) for name in ("buckets", "packed")}
MIXTURES = {name: functools.partial(mixture, batching=name) for name in ("buckets", "packed")}


def make_document_batches(folder, seed, *, rows, **hosts):
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(97, 123, rng.integers(10, 60)))) for _ in range(80)]
    cache = TokenCache.open(hold([(text,) for text in texts], "texts"), Characters(), str(folder))
    config = DocumentsConfig(row_length=64, batch_tokens=320, rows=rows)
    return document_batches.train_batches(cache, config, seed, **hosts)


CONTIGUOUS = {"contiguous": functools.partial(make_document_batches, rows="contiguous")}
PACKED = {"packed": functools.partial(make_document_batches, rows="packed")}


def image_batches(folder, seed, batch_size=5, **hosts):
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 3, 3)).astype(np.uint8)
    source = ArrayImages(pixels, np.arange(20), [str(label) for label in range(20)], 255.0)
    return ImageBatches(source, ImagesConfig(batch_size=batch_size, max_shift=1, flip=True), seed, **hosts)


IMAGE_BATCHES = {"images": image_batches}


class Shortened(Letters):
    """A tokenizer that drops the last `count` letters of longer texts."""

    def __init__(self, count):
        super().__init__(60_000)
        self.count, self.fingerprint = count, f"shortened by {count}"

    def encode(self, texts):
        return [ids[: len(ids) - self.count] or ids for ids in super().encode(texts)]


def segmentations(folder, seed, *, host_index=0, host_count=1):
    """Returns batches that alternate between three segmentations."""
    config, pairs = pair_config(batch_tokens=365), random_pairs(200)
    caches = [TokenCache.open(pairs, Shortened(count), str(folder)) for count in range(3)]
    versions = [pair_batches.PairEpochs(cache, config, seed + number) for number, cache in enumerate(caches)]
    return Batches(versions, host_index=host_index, host_count=host_count)


ALL_BATCHES = {
    **PAIR_BATCHES,
    **{f"mixed {name}": case for name, case in MIXTURES.items()},
    "segmentations": segmentations,
    **{f"{name} documents": case for name, case in (CONTIGUOUS | PACKED).items()},
    "images": functools.partial(image_batches, batch_size=7),
}
