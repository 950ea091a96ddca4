"""Articles with summaries, as documents that end in their summary.

The data are documents that contain `before_summary` and their summary, or two columns of a table or data set,
or two files of lines. An article of several source documents joins them in the given order.
"""

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfm.data.config import FEATURE, KINDS, SPLITS, DocumentsConfig, PairsConfig, vocabulary_field
from tfm.data.data_errors import raise_all
from tfm.data.inspection import Summary, hash_text
from tfm.data.source import Row, Source, read_in_chunks
from tfm.data.source import hash_text as identify
from tfm.data.sources.columns import ListColumns, join_texts
from tfm.data.sources.opening import open_documents, open_pairs
from tfm.data.sources.splits import find_split_problems
from tfm.errors import UserError
from tfm.systems.t_dmca.reports import SEPARATOR

# Between the source documents of an article in Multi-News, and for a line end in its cleaned files.
DOCUMENT_MARKS = re.compile(r"\s*(?:\|{5}|story_separator_special_tag|NEWLINE_CHAR)\s*")
COLUMN_KINDS = tuple(kind for kind in KINDS if kind != "builtin")
CHUNK_DOCUMENTS = 1000  # tokenized at a time
PERCENTILE = 95
log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SummariesConfig(DocumentsConfig):
    """The source of articles with summaries, their tokenizer, and how they become rows."""

    summary_column: str = vocabulary_field(
        "",
        "Column or feature of the summaries. text: ending of the files with a summary in each line. "
        "data.feature is then the column, the feature or the ending of the articles. If empty, each document "
        "contains its summary after data.before_summary.",
        pattern=re.compile(f"({FEATURE.pattern})?"),
        form="letters, digits, '.', '_' or '-'",
    )
    before_summary: str = vocabulary_field(
        SEPARATOR,
        "Text between an article and its summary. Its last place in a document counts. It is inserted "
        "between data.feature and data.summary_column.",
        pattern=re.compile("(?s:.+)"),
        form="a text that is not empty",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.summary_column and self.kind not in COLUMN_KINDS:
            raise UserError(
                f"data.summary_column needs data.kind={', '.join(COLUMN_KINDS)}, got {self.kind!r}. Leave "
                "data.summary_column empty, and return documents that contain data.before_summary and their "
                "summary."
            )

        if self.summary_column == self.feature:
            raise UserError(
                f"data.feature and data.summary_column are both {self.feature!r}, so each article would be "
                "its own summary. Set another column."
            )

    def open_rows(self, name: str) -> Source | None:
        """Returns the articles of a split with their summaries. None if documents contain their summaries."""
        if not self.summary_column:
            return None
        pairs = _ArticlesConfig(
            kind=self.kind,
            name=self.name,
            directory=self.directory,
            format=self.format,
            source_language=self.feature,
            target_language=self.summary_column,
            source_column=self.feature,
            target_column=self.summary_column,
            train=name,
        )
        return join_pairs(open_pairs(pairs, "train"), self.before_summary, name)


@dataclasses.dataclass(frozen=True)
class _ArticlesConfig(PairsConfig):
    """Pairs of an article and a summary. An article may be a list of source documents."""

    @property
    def list_columns(self) -> ListColumns:
        """The column of the articles."""
        return {self.columns[0]: join_texts}


class Cut(NamedTuple):
    """A document whose article was cut at its end.

    Attributes:
      text: the article, the text before the summary, and the summary.
      tokens: number of tokens of the text, with EOS.
    """

    text: str
    tokens: int


def join_pairs(pairs: Source, before_summary: str, shown_as: str) -> Source:
    """Returns documents that end in their summary. Leaves out articles without text or without a summary.

    The marks between the articles of Multi-News become blanks. A summary that contains `before_summary` is a
    problem of the source.

    Args:
      pairs: rows of (article, summary).
      before_summary: text between both.
      shown_as: name of the split in messages.
    """

    def read() -> Iterator[Row]:
        for article, summary in pairs:
            if article and summary:
                yield (DOCUMENT_MARKS.sub(" ", article).strip() + before_summary + summary,)

    def find_problems() -> list[str]:
        problems = pairs.find_problems()
        if problems:
            return problems
        rows = empty = 0
        for rows, (article, summary) in enumerate(pairs, 1):
            empty += not (article and summary)
            if before_summary in summary:
                return [
                    f"The summary of row {rows:,} of the split '{shown_as}' contains the text "
                    f"{before_summary!r}, which marks the beginning of a summary. Set data.before_summary to "
                    "another text."
                ]
        if empty:
            log.warning(
                "Left out %s of %s rows of the split '%s' without an article or without a summary",
                f"{empty:,}",
                f"{rows:,}",
                shown_as,
            )
        return []

    return Source(
        read, lambda: f"summaries-{identify(f'{before_summary} {pairs.fingerprint}')}", None, find_problems
    )


def check_documents(data: SummariesConfig) -> None:
    """Checks that each document of the splits of a new run contains `before_summary`.

    Documents of two columns always contain it.

    Raises:
      UserError: if a split cannot be used, or a document of it lacks the text.
    """
    if not data.summary_column:
        raise_all(find_split_problems(data, SPLITS, _find_documents_without_summary))


def _find_documents_without_summary(data: SummariesConfig, split: str) -> list[str]:
    """Returns the problem of the first document of a split that lacks the text before the summary, or []."""
    for number, (text,) in enumerate(open_documents(data, split), 1):
        if data.before_summary not in text:
            return [f"The split '{split}': {_describe_missing_text(number, data.before_summary)}"]
    return []


def _describe_missing_text(number: int, before_summary: str) -> str:
    """Returns the error message of a document, counted from 1, that lacks the text before its summary."""
    return (
        f"Expected the text {before_summary!r} before the summary of each document, but document {number:,} "
        "does not contain it. Set data.before_summary to the text before the summary. For articles and "
        "summaries in two columns, set data.feature and data.summary_column."
    )


def split_documents(documents: Sequence[str], before_summary: str) -> tuple[list[str], list[str]]:
    """Returns the text up to the end of `before_summary` of each document, and the summary after it.

    A blank at the end of `before_summary` is left out.

    Raises:
      UserError: if a document does not contain the text.
    """
    prefixes, references = [], []
    for number, text in enumerate(documents, 1):
        article, separator, summary = text.rpartition(before_summary)
        if not separator:
            raise UserError(_describe_missing_text(number, before_summary))
        # Word pieces begin with the blank before a word, and a blank at the end would be another piece.
        prefixes.append(article + (separator.rstrip(" ") or separator))
        references.append(" ".join(summary.split()))
    return prefixes, references


def cut_articles(documents: Source, tokenizer: Any, config: SummariesConfig, split: str) -> Source:
    """Returns documents whose articles are cut, so that article and summary fit into a row.

    As in the paper, the first tokens of an article stay. Documents that fit are unchanged. If articles were
    cut, a warning counts them after the first whole reading.

    Args:
      documents: documents that end in their summary.
      tokenizer: counts the tokens.
      config: has the length of a row and the text before a summary.
      split: name of the split in messages.
    """
    messages = [log.warning]  # of the first reading

    def read() -> Iterator[Row]:
        count = cut = 0
        for chunk in read_in_chunks(documents, CHUNK_DOCUMENTS):
            texts = [text for (text,) in chunk]
            for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
                count += 1
                if len(ids) < config.row_length:
                    yield (text,)
                    continue
                cut += 1
                article, separator, summary = text.rpartition(config.before_summary)
                yield (cut_article(article, separator + summary, tokenizer, config.row_length).text,)
        if cut and messages:
            messages.pop()(
                "Cut %s of %s articles of the split '%s' at the end, so that article and summary fit into "
                "data.row_length (%s tokens)",
                f"{cut:,}",
                f"{count:,}",
                split,
                f"{config.row_length:,}",
            )

    options = f"{config.row_length} {config.before_summary} {tokenizer.fingerprint} {documents.fingerprint}"
    return Source(read, lambda: f"cut-{identify(options)}", lambda: len(documents), documents.find_problems)


def cut_article(article: str, ending: str, tokenizer: Any, length: int) -> Cut:
    """Returns the longest beginning of an article that fits into a row before an ending.

    An ending that is longer than the row stays whole, after an empty article.

    Args:
      article: the article.
      ending: the text after it.
      tokenizer: counts the tokens.
      length: maximum number of tokens, including EOS.
    """
    [ids] = tokenizer.encode([article])
    kept, text = len(ids), article + ending
    tokens = len(tokenizer.encode([text])[0]) + 1
    while tokens > length and kept:
        kept = max(kept - (tokens - length), 0)
        # The tokens of another text may differ, so the text is encoded again.
        text = tokenizer.decode(ids[:kept]).rstrip("\ufffd") + ending
        tokens = len(tokenizer.encode([text])[0]) + 1
    return Cut(text, tokens)


def inspect_split(config: Any, split: str) -> Summary:
    """Returns the lengths of the articles and the summaries of a split, and how far summaries compress.

    Raises:
      UserError: if the split cannot be used; a `MissingFile` if it does not exist.
    """
    data: SummariesConfig = config.data
    documents = open_documents(data, split)
    raise_all(documents.find_problems())
    texts = [text for (text,) in documents]
    prefixes, summaries = split_documents(texts, data.before_summary)
    mark = data.before_summary.rstrip(" ") or data.before_summary
    articles = [prefix.removesuffix(mark) for prefix in prefixes]
    lengths = {
        name: np.array([len(text.split()) for text in side])
        for name, side in (("article", articles), ("summary", summaries))
    }
    compression = lengths["article"].sum() / max(lengths["summary"].sum(), 1)
    new = np.mean([_share_of_new_words(*pair) for pair in zip(articles, summaries, strict=True)])
    too_long = int((lengths["article"] + lengths["summary"] > data.row_length).sum())
    values = {
        "rows": len(texts),
        **{f"{name}_words": _describe(words) for name, words in lengths.items()},
        "compression": round(float(compression), 2),
        "new_words": round(float(new), 4),
        "longer_than_row": too_long,
    }
    lines = [
        *((f"{name}", _show(_describe(words))) for name, words in lengths.items()),
        ("compression", f"{compression:.1f} words of an article for each word of its summary"),
        ("new words", f"{100 * new:.1f} % of the words of a summary are not in its article"),
    ]
    hints = []
    if too_long and data.rows == "packed":
        hints.append(
            f"{too_long:,} articles with their summaries have more words than a row has tokens "
            f"(data.row_length={data.row_length}), so the articles are cut at the end"
        )
    short = int((lengths["article"] < lengths["summary"]).sum())
    if short:
        hints.append(f"{short:,} articles are shorter than their summaries. Are both columns exchanged?")
    hashes = np.array([hash_text(text) for text in texts], np.uint64)
    return Summary(split, f"{len(texts):,} articles with summaries", lines, values, hints, hashes)


def _describe(words: np.ndarray) -> dict[str, float]:
    """Returns mean, median, 95th percentile and maximum of numbers of words."""
    return {
        "mean": round(float(words.mean()), 1),
        "median": float(np.median(words)),
        "p95": float(np.percentile(words, PERCENTILE, method="higher")),
        "longest": int(words.max()),
    }


def _show(words: dict[str, float]) -> str:
    return (
        f"{words['mean']:,.1f} words (median {words['median']:,.0f}, 95 % have at most {words['p95']:,.0f}, "
        f"longest {words['longest']:,})"
    )


def _share_of_new_words(article: str, summary: str) -> float:
    """Returns the share of the words of a summary that its article does not contain, in small letters."""
    words = summary.lower().split()
    known = set(article.lower().split())
    return sum(word not in known for word in words) / max(len(words), 1)
