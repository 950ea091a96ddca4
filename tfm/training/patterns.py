"""Shell patterns that select parameters by their paths, such as "encoder/layers_0/norm/scale"."""

import fnmatch
from collections.abc import Callable, Iterable, Sequence

from tfm.errors import UserError


def match(patterns: Iterable[str], excluded: Iterable[str] = ()) -> Callable[[str], bool]:
    """Returns a function of a path: whether a pattern matches it and no excluded pattern does."""

    def is_wanted(path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, each) for each in patterns) and not any(
            fnmatch.fnmatchcase(path, each) for each in excluded
        )

    return is_wanted


def check_patterns(owner: str, patterns: Iterable[str], paths: Sequence[str]) -> None:
    """Checks that each pattern matches a path.

    Raises:
      UserError: if a pattern of `owner` matches no parameter.
    """
    for pattern in patterns:
        if not any(map(match([pattern]), paths)):
            raise UserError(
                f"Expected each pattern of {owner} to match a parameter, but {pattern!r} matches none; one "
                f"of the paths is {paths[0]!r}."
            )
