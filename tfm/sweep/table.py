"""The table of a sweep: scores of each variant with confidence intervals, next to published scores."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from tfm.io.markdown import format_table
from tfm.sweep.variants import PARAMETERS, Variant

CONFIDENCE = 0.95
DIGITS = 2  # decimals of scores in the table


class Row(NamedTuple):
    """A finished run: its variant and seed, {name of a score: value}, and its number of parameters."""

    variant: str
    seed: int
    scores: Mapping[str, float]
    parameters: int | None


class Interval(NamedTuple):
    """A mean and half of its 95 % confidence interval. The half is nan if there is no interval."""

    mean: float
    half: float

    def format(self, sign: str = "") -> str:
        """Returns a text such as "25.80 ± 0.31". With "+" as `sign`, positive numbers have a plus."""
        half = "" if math.isnan(self.half) else f" ± {self.half:.{DIGITS}f}"
        return f"{self.mean:{sign}.{DIGITS}f}{half}"


def mean_interval(values: Sequence[float]) -> Interval:
    """Returns the mean of independent values with its interval by Student's t.

    There is no interval for a single value, or if a value is infinite or nan, as the perplexity of a run that
    diverged.
    """
    # `statistics.fmean` raises an error for the sum of inf and -inf.
    mean, degrees = sum(values) / len(values), len(values) - 1
    if not degrees or not math.isfinite(mean):
        return Interval(mean, math.nan)
    quantile = float(stdtrit(degrees, (1 + CONFIDENCE) / 2))  # of Student's t, two-sided
    return Interval(mean, quantile * statistics.stdev(values) / math.sqrt(len(values)))


def difference_interval(values: Mapping[int, float], base: Mapping[int, float]) -> Interval | None:
    """Returns the mean of values[seed] - base[seed], with its interval by Student's t on these differences.

    The differences are paired because runs with the same seed share their batches and initial random numbers,
    so a good seed raises both scores.

    Args:
      values: {seed: score} of a variant.
      base: {seed: score} of the base.

    Returns:
      The interval, or None if no seed has both scores.
    """
    shared = values.keys() & base.keys()
    if not shared:
        return None
    return mean_interval([values[seed] - base[seed] for seed in sorted(shared)])


def judge(difference: Interval, published: float) -> str:
    """Decides whether our difference from the base confirms the published difference.

    Args:
      difference: our difference from the base, with its interval.
      published: the published difference from the base.

    Returns:
      "yes": our difference has the same sign, and its interval excludes 0.
      "no": our interval excludes 0, but the published difference has the other sign or is 0.
      "open": our interval contains 0, or there is no interval. This does not show that variants are equal.
    """
    if not abs(difference.mean) > difference.half:  # also true if the half is nan
        return "open"
    return "yes" if difference.mean * published > 0 else "no"


def make_table(variants: Sequence[Variant], rows: Sequence[Row], names: Sequence[str]) -> str:
    """Returns a Markdown table with a line for each variant that has finished runs, without empty columns.

    The columns are the name of the variant, the number of seeds, and the parameters in millions. For each
    score follow our mean with its interval, the published value, our difference and the published difference
    from the base, and the result of `judge`. A cell without a value is empty.

    Args:
      variants: the variants of the sweep. The first variant is the base.
      rows: the finished runs.
      names: names of the scores to show.
    """
    head = ["variant", "seeds", "parameters (millions)"]
    for name in names:
        head += [name, f"{name}, published", f"{name} - base", "published - base", "reproduced"]
    finished = {row.variant for row in rows}
    lines = [
        list(_cells(variant, variants[0], rows, names)) for variant in variants if variant.name in finished
    ]
    used = [index for index in range(len(head)) if not lines or any(line[index] for line in lines)]
    head, *lines = ([line[index] for index in used] for line in (head, *lines))
    return format_table(head, lines) + "\n"


def _cells(variant: Variant, base: Variant, rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Yields the cells of a variant, compared with the variant `base`. The other arguments: `make_table`."""
    finished = [row for row in rows if row.variant == variant.name]
    yield from (variant.name, str(len(finished)), _parameters(finished[-1], variant))
    for name in names:
        values, of_base = (_find_scores(rows, each.name, name) for each in (variant, base))
        published, published_base = variant.published.get(name), base.published.get(name)
        yield mean_interval(list(values.values())).format() if values else ""
        yield "" if published is None else f"{published:.{DIGITS}f}"
        difference = None if variant is base else difference_interval(values, of_base)
        if difference is None:
            yield from ("", "", "")
            continue
        yield difference.format("+")
        if published is None or published_base is None:
            yield from ("", "")
            continue
        yield f"{published - published_base:+.{DIGITS}f}"
        yield judge(difference, round(published - published_base, DIGITS))


def _parameters(row: Row, variant: Variant) -> str:
    """Returns the number of parameters in millions, with the published number if there is one."""
    ours = "" if row.parameters is None else f"{row.parameters / 1e6:,.2f}"
    if PARAMETERS not in variant.published:
        return ours
    return f"{ours} (published: {variant.published[PARAMETERS] / 1e6:,.0f})"


def _find_scores(rows: Sequence[Row], variant: str, name: str) -> dict[int, float]:
    """Returns {seed: value} of a score of a variant."""
    return {row.seed: row.scores[name] for row in rows if row.variant == variant and name in row.scores}
