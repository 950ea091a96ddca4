"""Hooks of MkDocs, which turn the documents of the repository into pages of a site.

README.md becomes the first page, and the README.md of each system becomes a page of the family. Notebooks
become pages with their stored output. The help of the commands becomes a page. A line "`tfm COMMAND --help`
lists the flags." becomes the table of these flags. Each file of code that a page links to becomes a page with
numbered lines. A link to a symbol, such as `../tfm/masks.py#causal_mask`, leads to the line on which the
symbol begins. Formulas become SVG, which needs no script, no font and no network. If `make docs` has exported
a run as a page that translates, the first page of the site links to it.
"""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from xml.etree import ElementTree

import nbformat
import ziamath
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from previews import describe, find_picture
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from symbols import symbol_lines

from tfm.commands.command import describe_flag, flag_fields
from tfm.commands.options import OPTIONS
from tfm.family import SYSTEMS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCS = os.path.join(ROOT, "docs")
PAGES = {"index.md": "README.md"}  # of the site: file of the repository
PAGES |= {f"family/{system.name}.md": system.page for system in SYSTEMS if not system.core_page}
PAGES |= {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
NOTES = "benchmarks/notes"  # of measurements
NOTES_INDEX = "index.md"  # page of the site that lists them
PAGES |= {f"notes/{name}": f"{NOTES}/{name}" for name in sorted(os.listdir(os.path.join(ROOT, NOTES)))}
SOURCE = "source"  # folder of the pages that show code
# Factors of the rank of pages in a search, so that the pages for users come first.
SEARCH_RANKS = {"reference/": 0.1, "notes/": 0.01, "source/": 0.001, "CHANGELOG": 0.01}
NO_CONTENTS = "---\nhide: [toc]\n---\n\n"  # first lines of a page that leave more width to its code
COMMANDS = "reference/commands.md"
COMMAND = re.compile(r"^  (\w+)  ", re.MULTILINE)  # in the list that `tfm --help` prints
FIELDS = re.compile(r"\nFields of the .*", re.DOTALL)  # the last part of the help of a command
FLAGS = re.compile(r"^`tfm (\w+) --help` lists the flags\.$", re.MULTILINE)
MODULE = re.compile(r"^- `(tfm[\w.]*?)(\.\*)?`$", re.MULTILINE)  # in the lists of docs/reference
FIGURE = re.compile(r"!\[[^\]]*\]\((\S*(?:transformer|family)\.svg)\)")  # whose boxes are links
# A picture that leads to a page of `tfm visualize`. The site shows the page itself.
EXPLORER = re.compile(r"\[!\[([^\]]*)\]\(\S*\)\]\((\S*attention\.html)\)")
# The page of a run, which `make docs` writes if the run exists, its place in the site, and the link to it.
LIVE_PAGE, LIVE_PLACE = "build/live/index.html", "live.html"
LIVE_LINK = f"**[Translate in this browser]({LIVE_PLACE})** and see the attention, without Python.\n\n"
IFRAME = r'<iframe class="explorer" src="\2" title="\1" loading="lazy"></iframe>'
NOTEBOOKS = "notebooks"  # folder of docs/ and of the site
LOCAL = r"(?!https?:|mailto:|data:|#)"
LINK = re.compile(rf"(\]\(){LOCAL}([^)#\s]+)(#[^)\s]*)?(\))")
HTML_LINK = re.compile(rf"((?:href|src)=\"){LOCAL}([^\"#]+)(#[^\"]*)?(\")")
# Flags in the meaning of a flag, and characters that Markdown would interpret there.
MARKUP = re.compile(r"(--[\w.]*\w(?:=\w+)?)|([*_|<])")
TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
CODE_WITH_PIPES = re.compile(r"`([^`]*\\\|[^`]*)`")
# A formula as `pymdownx.arithmatex` writes it, and the punctuation that has to stay on its line.
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>([.,:;?)]*)', re.DOTALL)
FORMULA_SIZE = 16  # units of an SVG in one em
ziamath.config.svg2 = False  # otherwise, formulas share glyphs by ids that are not unique in a page
# Code in a text and in blocks of plain text, not in blocks of a programming language.
TEXT_BLOCK = r'(?<=language-text highlight"><pre><span></span>)'
CODE = re.compile(rf"(?:{TEXT_BLOCK}|(?<!</span>))<code>.*?</code>", re.DOTALL)
TAG_OR_WORD = re.compile(r"<[^>]*>|[^\s<]+")
PLACE_OF_A_BREAK = re.compile(r"[-\[(]")  # where browsers break a line inside a word
END_OF_A_PART = re.compile(r"(&#124;|[|/,.=])")
LONG_WORD = 24  # characters: a longer word may not fit into a table on a phone


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside of docs/, notebooks, the help, and each file of code that is linked to."""
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=_read(path)))
    for name in sorted(os.listdir(os.path.join(DOCS, NOTEBOOKS))):
        if name.endswith(".ipynb"):
            _add_notebook(files, config, name.removesuffix(".ipynb"))
    files.append(File.generated(config, COMMANDS, content=_show_commands()))
    files.append(File.generated(config, f"notes/{NOTES_INDEX}", content=list_notes()))
    if _has_live_page():
        files.append(File.generated(config, LIVE_PLACE, abs_src_path=os.path.join(ROOT, LIVE_PAGE)))
    linked = set()
    for file in files.documentation_pages():
        linked |= {
            path for path in (_repository_path(target, file.src_uri) for target in _targets(file)) if path
        }
    for path in sorted(linked):
        files.append(File.generated(config, f"{SOURCE}/{path}.md", content=_show_source(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads the links of a page to pages of the site, and shows modules, flags, the figure and pipes."""
    for prefix, rank in SEARCH_RANKS.items():
        if page.file.src_uri.startswith(prefix):
            page.meta["search"] = {"boost": rank}
    if page.file.src_uri.startswith("reference/"):
        markdown = MODULE.sub(_show_modules, markdown)
    markdown = FLAGS.sub(lambda line: _tabulate_flags(line[1]), markdown)
    markdown = _inline_figure(markdown, page.file.src_uri)
    markdown = EXPLORER.sub(IFRAME, markdown)
    if page.file.src_uri == "index.md" and _has_live_page():
        markdown = markdown.replace("## ", f"{LIVE_LINK}## ", 1)
    for pattern in (LINK, HTML_LINK):
        markdown = pattern.sub(lambda match: _rewrite(match, page.file.src_uri), markdown)
    return TABLE_ROW.sub(lambda row: CODE_WITH_PIPES.sub(_show_pipes, row[0]), markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draws formulas, describes the page, and marks the words of code that browsers would break.

    An example of such a word is --workdir=DIR. site.css keeps these words whole. The theme puts the
    description and the picture into the head of the page.
    """
    html = FORMULA.sub(_typeset, html)
    if page is not None:
        page.meta.setdefault("description", describe(html) or f"{page.title} in the repository of tfm.")
        page.meta.setdefault("picture", find_picture(html, page.url))
    return CODE.sub(lambda code: TAG_OR_WORD.sub(_mark_word, code[0]), html)


def _has_live_page() -> bool:
    """Returns whether `make docs` has exported a run as a page that translates."""
    return os.path.exists(os.path.join(ROOT, LIVE_PAGE))


def _inline_figure(markdown: str, page: str) -> str:
    """Returns a page with the text of the figure in place of the picture, because a picture has no links."""

    def inline(match: re.Match) -> str:
        path = _resolve(match[1], page)
        up = os.path.relpath(os.path.dirname(path), _folder(page) or ".")
        figure = HTML_LINK.sub(lambda link: f"{link[1]}{up}/{link[2]}{link[3] or ''}{link[4]}", _read(path))
        return f'<figure class="linked">\n{figure}</figure>'

    return FIGURE.sub(inline, markdown)


def _typeset(match: re.Match) -> str:
    """Returns the SVG of a formula in LaTeX. Its size and baseline follow the surrounding text."""
    tag, source, punctuation = match[1], unescape(match[2]).strip(), match[3]
    options = {"size": FORMULA_SIZE, "color": "currentColor", "title": source}
    formula = ziamath.Latex(source, inline=tag == "span", **options)
    svg = formula.svgxml()
    width = float(svg.attrib.pop("width")) / FORMULA_SIZE
    del svg.attrib["height"]  # follows from the width, also on a screen that is narrower than the formula
    depth = (formula.margin - formula.getyofst()) / FORMULA_SIZE
    svg.attrib |= {"role": "img", "style": f"width: {width:.3f}em; vertical-align: {-depth:.3f}em"}
    return f'<{tag} class="formula">{ElementTree.tostring(svg, encoding="unicode")}{punctuation}</{tag}>'


def _mark_word(match: re.Match) -> str:
    """Returns a word in a `span` if a browser would break it. A long word may break after its parts."""
    word = match[0]
    is_tag, is_long = word.startswith("<"), len(word) > LONG_WORD
    if is_tag or not (is_long or PLACE_OF_A_BREAK.search(word)):
        return word
    parts = END_OF_A_PART.sub(r"\1<wbr>", word) if is_long else word
    return f'<span class="word">{parts}</span>'


def _show_pipes(match: re.Match) -> str:
    """Returns code of a table as HTML, because a code span would show the backslash before each pipe."""
    code = match[1].replace("&", "&amp;").replace("<", "&lt;").replace("\\|", "&#124;")
    return f"<code>{code}</code>"


def _add_notebook(files: Files, config: MkDocsConfig, name: str) -> None:
    """Adds a page for a notebook, and its pictures."""
    notebook = nbformat.reads(_read(f"docs/{NOTEBOOKS}/{name}.ipynb"), as_version=4)
    options = {"output_files_dir": name, "unique_key": name}
    exporter = MarkdownExporter(preprocessors=[CoalesceStreamsPreprocessor])  # a cell prints a single block
    text, resources = exporter.from_notebook_node(notebook, resources=options)
    files.append(File.generated(config, f"{NOTEBOOKS}/{name}.md", content=text))
    for path, content in resources["outputs"].items():
        files.append(File.generated(config, f"{NOTEBOOKS}/{path}", content=content))


def _show_commands() -> str:
    """Returns a page with the help of every command. The help of `tfm train` lists all fields of a config."""
    names = COMMAND.findall(_help())
    with ThreadPoolExecutor() as pool:
        texts = dict(zip(names, pool.map(_help, names), strict=True))
    shown = {name: text if name == "train" else FIELDS.sub("", text) for name, text in texts.items()}
    sections = [f"## tfm {name}\n\n```{{.text .help}}\n{text.strip()}\n```\n" for name, text in shown.items()]
    introduction = "You want to look up a flag or a field. This page has the help of each command."
    return "\n".join(["# Commands and config fields\n", f"{introduction}\n", *sections])


def list_notes() -> str:
    """Returns a page that leads to each note about a measurement."""
    lines = [
        "# Measurements",
        "",
        "These notes say how a number of the documents was measured, and what was tried.",
        "",
    ]
    for name in sorted(os.listdir(os.path.join(ROOT, NOTES))):
        heading = _read(f"{NOTES}/{name}").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{heading}]({name})")
    return "\n".join(lines) + "\n"


def _show_modules(match: re.Match) -> str:
    """Returns the section of a module, or of all modules of a package for `tfm.layers.*`."""
    names = [match[1]]
    if match[2]:
        modules = pkgutil.iter_modules([os.path.join(ROOT, *match[1].split("."))])
        names = [f"{match[1]}.{module.name}" for module in modules]
    return "\n".join(f"## {name}\n\n{_describe_module(name)}" for name in names)


def _describe_module(name: str) -> str:
    """Returns the description of a module. A package gets a table of the names that it exports.

    The table links to the descriptions in the modules that define the names, so that none appears twice.
    """
    package = importlib.import_module(name)
    if not hasattr(package, "__path__") or not hasattr(package, "__all__"):
        return f"::: {name}\n"
    members = [member for member in package.__all__ if _module_of(getattr(package, member)) == name]
    lines = [
        f"::: {name}",
        "    options:",
        f"      members: {members or 'false'}",
        "",
        "| name | meaning |",
        "| --- | --- |",
    ]
    for exported in package.__all__:
        value = getattr(package, exported)
        if _module_of(value):
            place = f"{value.__module__}.{value.__qualname__}"
            meaning = inspect.getdoc(value).partition("\n")[0].replace("|", "\\|")
            lines.append(f"| [`{exported}`][{place}] | {meaning} |")
        else:
            kind = "constant" if isinstance(value, str | int | float | tuple | dict) else "type"
            lines.append(f"| `{exported}` | a {kind} |")
    return "\n".join(lines) + "\n"


def _module_of(value: object) -> str | None:
    """Returns the module that defines a function or a class, and None for any other value."""
    return value.__module__ if inspect.isfunction(value) or inspect.isclass(value) else None


def _tabulate_flags(command: str) -> str:
    """Returns a table of the flags of a command with their meanings, made from its options."""
    cls, lines = OPTIONS[command], ["| flag | meaning |", "| --- | --- |"]
    for name, field in flag_fields(cls).items():
        flag, meaning = describe_flag(cls, name, field)
        meaning = MARKUP.sub(lambda match: f"`{match[1]}`" if match[1] else f"\\{match[2]}", meaning)
        lines.append(f"| `{flag}` | {meaning} |")
    return "\n".join(lines)


def _help(*command: str) -> str:
    """Returns what `tfm COMMAND --help` prints."""
    arguments = [sys.executable, "-m", "tfm", *command, "--help"]
    return subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _targets(file: File) -> list[str]:
    """Returns the targets of the local links of a page, in Markdown and in HTML."""
    text = _inline_figure(file.content_string, file.src_uri)
    return [match[2] for pattern in (LINK, HTML_LINK) for match in pattern.finditer(text)]


def _rewrite(match: re.Match, page: str) -> str:
    """Returns a link of a page with the target that the site has for it."""
    opening, target, anchor, closing = match.groups()
    path = _resolve(target, page)
    if path in PAGES.values():
        site_path = next(name for name, each in PAGES.items() if each == path)
    elif path.startswith(f"docs/{NOTEBOOKS}/") and path.endswith(".ipynb"):
        site_path = f"{path.removeprefix('docs/').removesuffix('.ipynb')}.md"
    elif _repository_path(target, page):
        site_path = f"{SOURCE}/{path}.md"
        anchor = _line_anchor(path, anchor)
    elif path.startswith("docs/"):
        site_path = path.removeprefix("docs/")
    else:
        return match[0]
    relative = os.path.relpath(site_path, os.path.dirname(page) or ".")
    if opening.startswith(("href", "src")):  # MkDocs leads only links in Markdown to the built pages
        relative = re.sub(r"\.md$", ".html", relative)
    return f"{opening}{relative}{anchor or ''}{closing}"


def _line_anchor(path: str, anchor: str | None) -> str:
    """Returns the anchor of the line on which a symbol begins: "#L-34" for "#causal_mask".

    Raises:
      PluginError: if the file does not define the symbol.
    """
    if not anchor:
        return ""
    symbol = anchor.removeprefix("#")
    line = symbol_lines(_read(path)).get(symbol)
    if line is None:
        raise PluginError(f"A page links to {path}{anchor}, but {path} defines no {symbol}.")
    return f"#L-{line}"


def _repository_path(target: str, page: str) -> str | None:
    """Returns the path of the code that a link leads to, or None for a link to something else."""
    path = _resolve(target, page)
    full = os.path.join(ROOT, path)
    if path in PAGES.values() or path.startswith("..") or not os.path.exists(full):
        return None
    return path if os.path.isdir(full) or not path.startswith("docs/") else None


def _resolve(target: str, page: str) -> str:
    """Returns the path in the repository that a link of a page means."""
    return os.path.normpath(os.path.join(_folder(page), target))


def _folder(page: str) -> str:
    """Returns the folder in the repository of the file that a page shows."""
    return os.path.dirname(PAGES.get(page, f"docs/{page}"))


def _show_source(path: str) -> str:
    """Returns a page with the lines of a file, the text of a document, or the names in a folder."""
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
    formatter = HtmlFormatter(
        cssclass="highlight no-copy",  # a copy would contain the numbers
        wrapcode=True,
        linenos="inline",
        lineanchors="L",  # L-1, L-2, ...
        anchorlinenos=True,
    )
    return f"{NO_CONTENTS}# {path}\n\n{highlight(_read(path), lexer, formatter)}\n"


def _read(path: str) -> str:
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()
