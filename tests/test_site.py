"""The site of mkdocs.yml: it builds without warnings, its links lead somewhere, and it needs no network."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr  # a warning is an error
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.html")}, folder


def test_every_page_is_there(site):
    pages, _ = site
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    sources |= {path.relative_to(ROOT) for path in (ROOT / "examples").glob("*.ipynb")}
    assert {str(path.with_suffix(".html")) for path in sources} <= pages.keys()
    assert "results/index.html" in pages


def test_links_and_their_anchors_exist(site):
    pages, folder = site
    anchors = {name: set(re.findall(r'\sid="([^"]+)"', text)) | {"", "__skip"} for name, text in pages.items()}
    for name, text in pages.items():
        if name == "404.html":  # its links are absolute
            continue
        for target in re.findall(r'<(?:a|img|link|script)\s[^>]*?(?:href|src)="([^"]+)"', text):
            if re.match(r"(?:https?|mailto|data):", target):
                continue
            path, _, anchor = unquote(html.unescape(target)).partition("#")
            there = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            assert (folder / there).exists(), (name, target)
            assert anchor in anchors.get(there, {""}), (name, target)


def test_nothing_is_loaded_from_the_network(site):
    for name, text in site[0].items():
        assert not re.findall(r'<(?:img|link|script|iframe)\s[^>]*?(?:href|src)="(?:https?:)?//', text), name


def test_search_works_in_files_opened_without_a_server(site, chromium):
    from selenium.webdriver.support.ui import WebDriverWait

    chromium.set_window_size(1280, 900)
    chromium.get((site[1] / "api/attacks.html").as_uri())
    chromium.find_element("css selector", "input[data-md-component=search-query]").click()
    chromium.switch_to.active_element.send_keys("autoattack")
    found = WebDriverWait(chromium, 30).until(lambda it: it.find_elements("css selector", ".md-search-result__link"))
    assert "evaluation.html" in " ".join(link.get_attribute("href") for link in found)
    assert chromium.get_log("browser") == []


def test_formulas_are_mathml(site):
    pages, _ = site
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in pages["method.html"]
    assert [name for name, text in pages.items() if 'class="arithmatex"' in text] == []
    assert "Unicode" not in pages["method.html"]
    assert "<mi>log</mi><msub>" not in pages["method.html"]  # is shown as logp


def test_options_are_not_broken_at_their_dashes(site):
    code = "".join(re.findall(r"<code>.*?</code>", "".join(site[0].values()), re.S))
    assert re.findall(r'(?<!<span class="option">)(?<![\w-])--[a-z][\w.-]*', code) == []


def test_the_api_pages_show_signature_and_docstring(site):
    attacks = re.sub(r"<[^>]+>", "", site[0]["api/attacks.html"])
    assert re.search(r"pgd\(\s*model: Model", html.unescape(attacks))
    assert "Adversarial images after steps times x_adv" in html.unescape(attacks)


def test_public_names_are_on_the_api_pages():
    pixelpart = __import__("pixelpart")
    text = "".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    assert [name for name in pixelpart.__all__ if f"`pp.{name}`" not in text] == []
