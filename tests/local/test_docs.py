"""The documentation: the site that local/docs.py makes of the pages, and the code that they name."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from local import docs
from local.machine import PROJECT

#: Elements that load what they name. A link (`a`) loads nothing before somebody follows it.
LOADED = (
    r"<(?:script|img|iframe|source|video|embed|object|use)\b[^>]*?(?:src|srcset|data|href)=\"?([^\" >]+)",
    r"<link\b(?![^>]*canonical)[^>]*?href=\"?([^\" >]+)",
)
BLOCKS = ("ul", "ol", "li", "table", "tr", "td", "blockquote", "pre", "h1", "h2", "h3", "strong", "em")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs.build(tmp_path_factory.mktemp("docs"))


def test_it_loads_nothing_from_another_server(site: Path) -> None:
    pages = [page.read_text() for page in site.rglob("*.html")]
    loaded = [address for page in pages for pattern in LOADED for address in re.findall(pattern, page)]
    assert len(loaded) > 100
    assert [address for address in loaded if "//" in address] == []
    styles = [*pages, *(style.read_text() for style in site.rglob("*.css"))]
    assert [text for text in styles if re.search(r"(?:url\(|@import)[\"' ]*https?:", text)] == []


def test_another_build_gives_the_same_files(site: Path, tmp_path: Path) -> None:
    built = [
        {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (site, docs.build(tmp_path))
    ]
    assert built[0] == built[1]


def test_no_page_has_what_makes_the_generators_scripts_load_more(site: Path) -> None:
    wanting = r'class="[^"]*\b(?:mermaid|glightbox)\b|data-md-component="source"|data-md-exec'
    assert [page.name for page in site.rglob("*.html") if re.search(wanting, page.read_text())] == []


def test_a_page_has_the_blocks_that_a_git_host_shows(site: Path) -> None:
    """Python-Markdown reads lists in another way than CommonMark, and tables after a text not at all."""
    parser = MarkdownIt("commonmark").enable("table")
    for source, page in docs.sources().items():
        if not page.endswith(".md"):
            continue
        text = (PROJECT / source).read_text()
        for block in docs.diagrams():
            text = text.replace(block, "")
        tokens = [token for parent in parser.parse(text) for token in (parent, *(parent.children or []))]
        expected = Counter(token.tag for token in tokens if token.nesting == 1 and token.tag in BLOCKS)
        expected["pre"] = sum(token.type in ("fence", "code_block") for token in tokens)
        path = page.replace("README.md", "index.md").removesuffix(".md") + ".html"
        article = (site / path).read_text().partition("<article")[2].partition("</article")[0]
        built = Counter(tag for tag in re.findall(r"<(\w+)[ >]", article) if tag in BLOCKS)
        assert built == +expected, page


def test_each_link_of_an_alert_leads_to_its_heading(site: Path) -> None:
    rules = (PROJECT / "docker" / "prometheus" / "alerts.yml").read_text()
    links = re.findall(r"externalLabels.docs }}/(\S+)#([\w-]+)'", rules)
    assert len(links) > 25
    alerts = (site / docs.ALERTS).read_text()
    for address, anchor in links:
        page = (site / address / "index.html").read_text()
        [target] = re.findall(r'location\.replace\("([^"]+)" \+ location\.hash\)', page)
        assert (site / address / target).resolve() == (site / docs.ALERTS).resolve()
        assert f'id="{anchor}"' in alerts, anchor


def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "zensical.toml").write_text(
        '[project]\nsite_name = "x"\ndocs_dir = "pages"\nsite_dir = "site"\n'
    )
    index = tmp_path / "pages" / "index.md"
    for link in ("gone.md", "#gone"):
        index.write_text(f"# Title\n\n[text]({link})\n")
        with pytest.raises(docs.DocsFailed, match=r"index\.md:3"):
            docs.generate(tmp_path)
    index.write_text("# Title\n\n[text](#title)\n")
    docs.generate(tmp_path)


def test_a_link_to_a_file_outside_the_site_is_text() -> None:
    for link, adapted in (
        ("[`manage.py`](../../manage.py)", "`manage.py`"),
        ("[its role](../../config/roles.py#x)", "its role (`config/roles.py`)"),
        ("[words](../reference/glossary.md#hold)", "[words](../reference/glossary.md#hold)"),
        ("[changes](../../CHANGELOG.md)", "[changes](../changelog.md)"),
    ):
        assert docs.adapt(link, "docs/guides/admin.md", docs.sources()) == f"{adapted}\n"
    with pytest.raises(docs.DocsFailed, match=r"gone\.py"):
        docs.adapt("[x](../gone.py)", "docs/measurements.md", docs.sources())


def test_a_new_diagram_needs_its_picture() -> None:
    with pytest.raises(docs.DocsFailed, match="make pictures"):
        docs.diagram("```mermaid\nstateDiagram-v2\n    a --> gone\n```", "docs/index.md")


def test_a_diagram_says_its_width_for_a_phone() -> None:
    for block in docs.diagrams():
        shown = docs.diagram(block, "docs/index.md")
        assert re.search(r'^<figure class="diagram"><svg [^>]*--width: ([\d.]+px); max-width: \1;', shown)


def test_no_picture_of_a_diagram_is_left_over() -> None:
    assert {docs.drawing(block) for block in docs.diagrams()} == set(docs.DIAGRAMS.iterdir())


def test_each_step_through_the_code_is_where_the_page_says() -> None:
    for page in ("an-email", "a-payment"):
        text = (docs.DOCS / "explain" / f"{page}.md").read_text()
        steps = re.findall(r"\*\*([\w/]+\.py)\*\*(?:: `(\w+)`)?", text)
        assert len(steps) > 8, page
        for path, name in steps:
            code = (PROJECT / path).read_text()
            assert re.search(rf"^ *(?:def |class )?{name}\b", code, re.MULTILINE), (page, path, name)
    text = (docs.DOCS / "explain" / "architecture.md").read_text()
    named = {
        f"{folder}/{name}"
        for folder, names in re.findall(r"(?<![\w/])(\w[\w/]*)/\{([\w, ]+)\}", text)
        for name in names.split(", ")
    }
    assert len(named) > 20
    gone = {path for path in named if not ((PROJECT / path).is_dir() or (PROJECT / f"{path}.py").exists())}
    assert gone == set()


def test_the_code_that_a_page_quotes_is_in_its_file() -> None:
    """A quotation begins with a comment that names its file. Its lines follow each other there."""
    page = (docs.DOCS / "explain" / "a-payment.md").read_text()
    blocks = re.findall(r"^ *```python\n(.*?)```", page, re.M | re.S)
    text = "".join(textwrap.dedent(block) for block in blocks)
    quoted = re.findall(r"^# ([\w/]+\.py)\n(.*?)(?=^# [\w/]+\.py\n|\Z)", text, re.M | re.S)
    assert len(quoted) >= 2
    assert "".join(f"# {path}\n{code}" for path, code in quoted) == text
    for path, code in quoted:
        source = (PROJECT / path).read_text()
        indents = {line[: len(line) - len(line.lstrip())] for line in source.splitlines()}
        assert any(f"\n{textwrap.indent(code.strip(), indent)}\n" in source for indent in indents), code


def test_the_map_of_folders_has_each_package() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"^([\w/]+)/  ", text, re.MULTILINE)
    assert [name for name in named if not (PROJECT / name).is_dir()] == []
    folders = {str(path.parent.relative_to(PROJECT)) for path in PROJECT.glob("[a-z]*/**/__init__.py")}
    left = re.compile(r"(tests|var|\w+/migrations|\w+/management/commands|notifications/providers/\w+)\b")
    assert {folder for folder in folders if not left.match(folder)} <= set(named)


def test_each_test_that_the_page_of_pairs_names_exists() -> None:
    named = re.findall(r"`(test_\w+|Test\w+)`", (PROJECT / "tests" / "pairs" / "README.md").read_text())
    assert len(named) > 50
    code = "".join(path.read_text() for path in (PROJECT / "tests").rglob("*.py"))
    assert {name for name in named if not re.search(rf"(?:def|class) {name}\b", code)} == set()
