"""The description and the picture of a page, for search engines and for previews of links."""

import html
import os
import re

PARAGRAPH = re.compile(r"<p(?: [^>]*)?>(.*?)</p>", re.DOTALL)
FORMULA = re.compile(r"<svg.*?</svg>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
SENTENCE = re.compile(r".+?[.:?!](?=\s|$)|.+$")
PICTURE = re.compile(r'<img[^>]*\bsrc="(?!data:|https?:)([^"]+\.(?:png|webp))"')  # a preview shows no SVG
MIN_LENGTH, MAX_LENGTH = 60, 200  # characters of a description


def describe(content: str) -> str:
    """Returns the first sentences of a page, with HTML escapes.

    Args:
      content: HTML of the page.

    Returns:
      Sentences of the first paragraph that has a text: as many as it takes for `MIN_LENGTH` characters, and
      at most `MAX_LENGTH` characters. "" if no paragraph has a text.
    """
    for paragraph in PARAGRAPH.findall(content):
        text = " ".join(html.unescape(TAG.sub("", FORMULA.sub("", paragraph))).split())
        if text:
            return html.escape(_shorten(text))
    return ""


def _shorten(text: str) -> str:
    """Returns the first sentences of a text. A description that is too long ends after a word."""
    description = ""
    for sentence in SENTENCE.findall(text):
        if len(description) >= MIN_LENGTH:
            break
        description = f"{description} {sentence.strip()}".strip()
    if len(description) <= MAX_LENGTH:
        return re.sub(":$", ".", description)
    return description[:MAX_LENGTH].rpartition(" ")[0] + " ..."


def find_picture(content: str, url: str) -> str | None:
    """Returns the path in the site of the first picture of a page, or None.

    Args:
      content: HTML of the page.
      url: Path of the page in the site. The paths of pictures are relative to its folder.
    """
    picture = PICTURE.search(content)
    return picture and os.path.normpath(os.path.join(os.path.dirname(url), picture[1]))
