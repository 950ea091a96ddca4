"""Numbers from 1 to 9,999 in words, English ("three hundred and twelve") and German ("dreihundertzwölf")."""

_EN_BELOW_20 = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_EN_TENS = ("", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_DE_BELOW_20 = (
    *("", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf"),
    *("dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
)
_DE_TENS = (
    "",
    "zehn",
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
)


def english_number(number: int) -> str:
    """British style: "and" before the last two digits. Raises ValueError outside 1 to 9,999."""
    _check(number)
    thousands, hundreds, rest = number // 1000, number // 100 % 10, number % 100
    large = [
        f"{_EN_BELOW_20[count]} {unit}"
        for count, unit in ((thousands, "thousand"), (hundreds, "hundred"))
        if count
    ]
    if large and rest:
        large.append("and")
    return " ".join(large + ([_english_below_100(rest)] if rest else []))


def _english_below_100(number: int) -> str:
    if number < 20:
        return _EN_BELOW_20[number]
    ten, unit = divmod(number, 10)
    return _EN_TENS[ten] + (f"-{_EN_BELOW_20[unit]}" if unit else "")


def german_number(number: int) -> str:
    """One word; 1 is "eins" at the end and "ein" inside. Raises ValueError outside 1 to 9,999."""
    _check(number)
    thousands, hundreds, rest = number // 1000, number // 100 % 10, number % 100
    large = [
        _inside(count) + unit for count, unit in ((thousands, "tausend"), (hundreds, "hundert")) if count
    ]
    return "".join(large) + (_german_below_100(rest) if rest else "")


def _german_below_100(number: int) -> str:
    if number < 20:
        return _DE_BELOW_20[number]
    ten, unit = divmod(number, 10)
    return (f"{_inside(unit)}und" if unit else "") + _DE_TENS[ten]


def _inside(digit: int) -> str:
    return "ein" if digit == 1 else _DE_BELOW_20[digit]


def _check(number: int) -> None:
    if not 1 <= number <= 9999:
        raise ValueError(f"expected a number from 1 to 9999, got {number}")
