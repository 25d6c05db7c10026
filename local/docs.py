"""Build the documentation site: `make docs`.

    python local/docs.py [folder]

Adapt the pages for the generator in <folder>/docs, then write <folder>/site. The default folder is var. A
dead link, a dead anchor or a missing picture of a diagram fails the build.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
DIAGRAMS = DOCS / "images" / "diagrams"
#: Files outside docs/ that the site has, too.
ADDED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docker/helm/orderpost/README.md": "reference/helm-chart.md",
    "web/static/orderpost/icon.svg": "site/icon.svg",
}
#: Each alert links to this address under its external label `docs`. The site answers it by the page.
ALERT_LINKS, ALERTS = "guides/alerts.md", "guides/alerts.html"
#: The first characters of a list's item, as CommonMark has them.
ITEM = re.compile(r"( *)([-*+]|\d+\.) +(?=\S)")
FENCE = re.compile(r"^( *```.*?^ *``` *$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


class DocsFailed(Exception):
    """The site cannot be built. The text says why."""


def main() -> None:
    """Build the site below the named folder, or var/."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else PROJECT / "var"
    try:
        print(f"Built {build(folder)}/index.html")
    except DocsFailed as reason:
        sys.exit(str(reason))


def build(folder: Path) -> Path:
    """Build the site below a folder. Return its own folder."""
    work, site = folder / "docs", folder / "site"
    shutil.rmtree(work, ignore_errors=True)
    published = sources()
    for source, page in published.items():
        target = work / "pages" / page
        target.parent.mkdir(parents=True, exist_ok=True)
        if page.endswith(".md"):
            target.write_text(adapt((PROJECT / source).read_text(), source, published))
        else:
            shutil.copyfile(PROJECT / source, target)
    shutil.copyfile(DOCS / "zensical.toml", work / "zensical.toml")
    generate(work)
    redirect(work / "site")
    shutil.rmtree(site, ignore_errors=True)
    (work / "site").rename(site)
    return site


def sources() -> dict[str, str]:
    """Return the files of the site: each path in the project with its path in the site."""
    files = [
        *DOCS.rglob("*.md"),
        *DOCS.rglob(".nav.yml"),
        *(DOCS / "images").glob("*.png"),
        *(DOCS / "site").iterdir(),
    ]
    return {str(file.relative_to(PROJECT)): str(file.relative_to(DOCS)) for file in sorted(files)} | ADDED


def adapt(text: str, source: str, published: dict[str, str]) -> str:
    """Return a page's text for the site."""

    def link(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        wanted = os.path.normpath(Path(source).parent / path)
        if wanted not in published:
            return outside(label, wanted, source)
        here = Path(published[source]).parent
        dark = wanted.replace(".png", "-dark.png")
        if image and dark in published:
            return " ".join(
                f"![{label}]({os.path.relpath(published[name], here)}#only-{mode})"
                for mode, name in (("light", wanted), ("dark", dark))
            )
        relative = os.path.relpath(published[wanted], here)
        return f"{image}[{label}]({relative}{'#' if anchor else ''}{anchor})"

    parts = FENCE.split(text)
    return indent_lists(
        "".join(LINK.sub(link, part) if i % 2 == 0 else diagram(part, source) for i, part in enumerate(parts))
    )


def indent_lists(text: str) -> str:
    """Return lists as Python-Markdown reads them: after an empty line, and each level four spaces deeper."""
    result: list[str] = []
    starts: list[int] = []  # where the text of each open item starts
    fence = False
    for line in text.splitlines():
        item = None if fence else ITEM.match(line)
        indent = len(line) - len(line.lstrip())
        if item or (starts and not fence and result and not result[-1].strip()):
            while starts and line.strip() and indent < starts[-1]:
                starts.pop()
        above = result[-1].strip() if result else ""
        if item and not starts and above and not ITEM.match(result[-1]):
            result.append("")
        cut = min(indent, starts[-1]) if starts else 0
        result.append((" " * 4 * len(starts) + line[cut:]) if line.strip() else "")
        if item:
            starts.append(item.end())
        fence ^= line.lstrip().startswith("```")
    return "\n".join(result) + "\n"


def outside(label: str, path: str, source: str) -> str:
    """Return a link to a file that the site does not have: to the repository, or else text."""
    if not (PROJECT / path).exists():
        raise DocsFailed(f"{source} links to {path}, which does not exist.")
    if address := tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["extra"].get("repository"):
        return f"[{label}]({address}/{path})"
    named = label.strip("`") in (path, Path(path).name, Path(path).stem)
    return f"`{path}`" if named else f"{label} (`{path}`)"


def diagram(block: str, source: str) -> str:
    """Return a Mermaid block as its picture. The generator would load Mermaid."""
    if not block.startswith("```mermaid"):
        return block
    drawn = drawing(block)
    if not drawn.exists():
        raise DocsFailed(f"A diagram of {source} is new. Run `make pictures`, which draws {drawn.name}.")
    svg = re.sub(r"\s*\n\s*", " ", drawn.read_text()).strip()
    # A phone needs the width, because its words would not be readable (docs/site/site.css).
    svg = re.sub(r"max-width: ([\d.]+px);", r"--width: \1; \g<0>", svg, count=1)
    return f'<figure class="diagram">{svg}</figure>'


def drawing(block: str) -> Path:
    """Return the path of a Mermaid block's picture."""
    return DIAGRAMS / f"{hashlib.sha256(block.strip().encode()).hexdigest()[:12]}.svg"


def diagrams() -> list[str]:
    """Return the Mermaid blocks of all pages."""
    pages = [PROJECT / source for source in sources() if source.endswith(".md")]
    blocks = [block for page in pages for block in FENCE.findall(page.read_text())]
    return [block for block in blocks if block.startswith("```mermaid")]


def generate(work: Path) -> None:
    """Run the generator. Fail with its warnings."""
    zensical = Path(sys.executable).with_name("zensical")
    run = subprocess.run(
        [zensical, "build", "--strict", "--clean", "--config-file", "zensical.toml"],
        cwd=work,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = re.sub(r"\x1b\[[\d;]*m", "", run.stdout)
    if run.returncode or "No issues found" not in output:
        raise DocsFailed(output.partition("Traceback")[0] or output)


def redirect(site: Path) -> None:
    """Let a web server answer ALERT_LINKS, a folder, by the same heading of the page of the alerts."""
    folder = site / ALERT_LINKS
    folder.mkdir(parents=True)
    target = os.path.relpath(site / ALERTS, folder)
    (folder / "index.html").write_text(
        f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Alerts</title>
<script>location.replace("{target}" + location.hash)</script>
<a href="{target}">Alerts</a>
"""
    )


if __name__ == "__main__":
    main()
