"""Hooks of mkdocs: pages from outside docs/, notebooks as pages, formulas as MathML, options kept on one line.

Links in the sources are relative paths in the repository, so that they also work where the files are read there; `link`
turns them into links of the site.
"""

import base64
import html
import json
import posixpath
import re
from pathlib import Path

import latex2mathml.converter
from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
OUTSIDE = (  # what the site holds from outside docs/
    "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md", "benchmarks/README.md",
    "examples/*.ipynb", "results/README.md", "results/agreement/*.json", "results/bench/*.json",
    "results/frontier-demo/PLAN.md",
    "results/study/PREREGISTRATION.md",
)  # fmt: skip


def uri(path):
    """Where the site has a file of the repository."""
    return re.sub(r"README\.md$", "index.md", path.removeprefix("docs/")).replace(".ipynb", ".md")


def on_files(files, config):
    for path in (path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".ipynb":
            text, pictures = as_markdown(json.loads(path.read_text()), path.stem)
            for picture, content in pictures.items():
                files.append(File.generated(config, f"examples/{picture}", content=content))
            page = File.generated(config, uri(name), content=text)
        else:
            page = File.generated(config, uri(name), abs_src_path=str(path))
        page.repository_path = name
        files.append(page)
    return files


def on_page_markdown(markdown, page, **kwargs):
    here = getattr(page.file, "repository_path", f"docs/{page.file.src_uri}")
    return re.sub(r"(?<=\]\()([^)\s]+)(?=\))", lambda match: link(match[0], here, page.file.src_uri), markdown)


def link(target, here, page):
    """The link of a repository's file, as a link of the site."""
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"\w+:", path) or (here.endswith(".ipynb") and path.endswith(".png")):
        return target
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    return posixpath.relpath(uri(there), posixpath.dirname(page) or ".") + mark + anchor


def as_markdown(notebook, name):
    """A notebook as a Markdown text, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                picture = f"{name}-{len(pictures)}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![The picture that the cell above draws]({picture})")
            elif "text/html" in data:
                parts.append(f'<div class="output">{"".join(data["text/html"])}</div>')
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts), pictures


def on_page_content(content, **kwargs):
    """Formulas, which arithmatex has marked, become MathML, so that nothing is loaded; options keep their line."""

    def mathml(match):
        text, display = html.unescape(match[2]).strip(), "block" if match[1] == "div" else "inline"
        found = latex2mathml.converter.convert(text, display=display)
        return re.sub(r"(<mi>log</mi>)(?=<m(?:i|sub)>)", r'\1<mspace width="0.17em"/>', found)  # log p, not logp

    def unbroken(match):
        return re.sub(r"--\w[\w.-]*", r'<span class="option">\g<0></span>', match[0])

    content = re.sub(r"<code>.*?</code>", unbroken, content, flags=re.S)
    return re.sub(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', mathml, content, flags=re.S)
