"""Hooks of MkDocs: makes the documents, whose links are those of the repository, pages of a site.

README.md becomes the first page, and each file of code that a page links to a page with numbered lines.
"""

import os
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCS = os.path.join(ROOT, "docs")
PAGES = {"index.md": "README.md"}  # of the site: file of the repository
PAGES |= {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
SOURCE = "source"  # folder of the pages that show code
LINK = re.compile(r"(\]\()((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?\)")
LINE = re.compile(r"#L(\d+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds README.md and its like, and a page for each file of code that is linked to."""
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=_read(path)))
    linked = set()
    for file in files.documentation_pages():
        linked |= {path for path in map(_repository_path, *_links(file)) if path}
    for path in sorted(linked):
        files.append(File.generated(config, f"{SOURCE}/{path}.md", content=_show_source(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads the links of a page to the pages of the site."""
    return LINK.sub(lambda match: _rewrite(match, page.file.src_uri), markdown)


def _links(file):
    """The targets in a page, and the page as many times."""
    found = [target for _, target, _ in LINK.findall(file.content_string)]
    return found, [file.src_uri] * len(found)


def _rewrite(match, page):
    opening, target, anchor = match.groups()
    path = _resolve(target, page)
    if path in PAGES.values():
        site_path = next(name for name, each in PAGES.items() if each == path)
    elif _repository_path(target, page):
        site_path = f"{SOURCE}/{path}.md"
        anchor = LINE.sub(r"#L-\1", anchor or "")
    elif path.startswith("docs/"):
        site_path = path.removeprefix("docs/")
    else:
        return match[0]
    return f"{opening}{os.path.relpath(site_path, os.path.dirname(page) or '.')}{anchor or ''})"


def _repository_path(target, page):
    """The path of the file or folder of code that a link leads to; None for any other link."""
    path = _resolve(target, page)
    full = os.path.join(ROOT, path)
    if path in PAGES.values() or path.startswith("..") or not os.path.exists(full):
        return None
    return path if os.path.isdir(full) or not path.startswith("docs/") else None


def _resolve(target, page):
    """The path in the repository that a link of a page means."""
    folder = os.path.dirname(PAGES.get(page, f"docs/{page}"))
    return os.path.normpath(os.path.join(folder, target))


def _show_source(path):
    """A page with the lines of a file, or the names in a folder."""
    full = os.path.join(ROOT, path)
    if os.path.isdir(full):
        names = sorted(name for name in os.listdir(full) if not name.startswith((".", "__")))
        if path.startswith("docs/"):  # which are files of the site
            up = os.path.relpath(path.removeprefix("docs/"), os.path.join(SOURCE, "docs"))
            names = [f"[{name}]({up}/{name})" for name in names]
        return f"# {path}\n\n" + "".join(f"- {name}\n" for name in names)
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        lexer = TextLexer()
    formatter = HtmlFormatter(linenos="inline", lineanchors="L", anchorlinenos=True)  # anchors L-1, L-2, ...
    return f"# {path}\n\n{highlight(_read(path), lexer, formatter)}\n"


def _read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()
