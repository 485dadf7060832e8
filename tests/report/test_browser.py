"""The explorer in headless Chromium: clicks, keys and links change what is drawn, and the console stays empty."""

import base64
import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from pixelpart import recipes
from pixelpart.evaluation.store import fingerprint
from pixelpart.report import write_report

pytest.importorskip("selenium", reason="needs selenium: pip install -e '.[dev]'")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

HOSTILE = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
N, SIZE, CLASSES = 12, 8, ["disc", HOSTILE, "ring"]
KINDS = ["picture", "heat map", "budget", "attacked", "change"]


class Explorer:
    """The page in the browser, and what a user sees of it."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, view="", *, width=1280, scheme="light"):
        run = self.driver.execute_cdp_cmd
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        run("Emulation.setDeviceMetricsOverride", size)
        run("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.driver.get("about:blank")
        self.driver.get(self.url + view)
        return self.settle()

    def settle(self):
        drawn = "const at = (name) => document.getElementById(`explorer-${name}`);"
        drawn += "return at('stage').ariaBusy === 'false' || !at('none').hidden"
        WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda driver: driver.execute_script(drawn))
        return self

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def at(self, name):
        return self.driver.find_element("id", f"explorer-{name}")

    def choose(self, name, text):
        element = self.at(name) if isinstance(name, str) else name
        Select(element).select_by_visible_text(text)
        return self.settle()

    def click(self, name):
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.at(name))
        self.at(name).click()
        return self.settle()

    def press(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()
        return self.settle()

    def filter(self, place, value):
        Select(self.driver.find_elements("css selector", "#explorer-runs select")[place]).select_by_value(value)
        return self.settle()

    @property
    def images(self):
        names = self.js("return [...document.querySelectorAll('#explorer-gallery button')].map((one) => one.ariaLabel)")
        return [int(name.split(",")[0].removeprefix("Test image ")) - 10 for name in names]

    @property
    def image(self):
        return int(self.at("title").text.split(":")[0].removeprefix("Test image ")) - 10

    def row(self, place):
        return self.driver.find_elements("css selector", ".shown-run")[place]

    def pixels(self, place, kind):
        """(h, w, 3) levels of a picture of a run."""
        canvas = self.row(place).find_elements("tag name", "canvas")[KINDS.index(kind)]
        uri = self.js("return arguments[0].toDataURL()", canvas)
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))).convert("RGB")).astype(int)

    def view(self):
        """All that a link has to bring back."""
        selects = self.driver.find_elements("css selector", ".explorer select")
        boxes = self.driver.find_elements("css selector", ".explorer input[type=checkbox], .explorer input[type=radio]")
        texts = [self.at("epoch-name").text, *(Select(one).first_selected_option.text for one in selects)]
        drawn = [self.pixels(place, "change").tolist() for place in (0, 1)]
        return self.image, self.images, texts, [box.is_selected() for box in boxes], drawn


@pytest.fixture
def content(explained, arrays):
    """explain.json and its arrays for a run: kept epochs 1 and 2, object masks, probabilities of all classes."""

    def make(seed, epochs=(1, 2), **shape):
        tensors = arrays(**{"n": N, "height": SIZE, "width": SIZE, "epochs": epochs} | shape)
        random = np.random.default_rng(seed)
        for prefix in ("", *(f"epoch-{epoch}." for epoch in epochs)):
            tensors[f"{prefix}probabilities"] = random.dirichlet([0.6] * 3, (N, 2)).astype(np.float32)
        tensors["object"] = np.zeros((N, *tensors["heat"].shape[1:]), np.uint8)
        tensors["object"][:, 2:4, 1:3] = 1
        facts = explained(n=N, epochs=list(epochs), classes=CLASSES)
        for row, image in enumerate(facts["images"]):
            image |= {"label": row % 3, "file": f"photos/{image['index']}.png"}
        return facts, tensors

    return make


@pytest.fixture
def runs(make_run, content, entry):
    """Folders of two runs; `part` has kept epoch 1 only, and results of AutoAttack for the first 16 test images."""
    robust = np.arange(16) % 2 == 0
    entries = [entry("natural"), entry(
        "autoattack", 0.5, n=16, correct=8, settings={}, key="a" * 32, fingerprint=fingerprint(robust)
    )]  # fmt: skip
    at_facts, at = content(4)
    part_facts, part = content(7, epochs=(1,))
    folders = [
        make_run("at", config=recipes.RECIPES["shapes-at"](epochs=3), explain=at_facts, tensors=at),
        make_run("part", explain=part_facts, tensors=part, entries=entries),
    ]
    (folders[1] / "eval").mkdir()
    np.save(folders[1] / "eval" / f"{'a' * 32}.npy", robust)
    return folders, [at, part], robust


@pytest.fixture
def explorer(chromium, tmp_path, runs):
    chromium.get_log("browser")
    yield Explorer(chromium, write_report(runs[0], tmp_path / "r.html").as_uri())
    assert chromium.get_log("browser") == []


def magma(values):
    return np.rint(matplotlib.colormaps["magma"](np.rint(255 * values).astype(np.uint8))[..., :3] * 255)


def right(tensors, when):
    return tensors["probabilities"][:, when].argmax(1) == np.arange(N) % 3


def test_the_chosen_image_is_drawn_for_every_run(explorer, runs):
    explorer.open()
    assert explorer.images == list(range(N))
    explorer.driver.find_elements("css selector", "#explorer-gallery button")[4].click()
    explorer.settle()
    assert explorer.image == 4
    for place, tensors in enumerate(runs[1]):
        levels = np.rint(tensors["picture"][4] * 255).transpose(1, 2, 0)
        assert np.array_equal(explorer.pixels(place, "picture"), levels)
        assert np.array_equal(explorer.pixels(place, "heat map"), magma(tensors["heat"][4]))
        attacked = tensors["adversarial"][4].transpose(1, 2, 0) * 255
        assert np.abs(explorer.pixels(place, "attacked") - attacked).max() <= 1
        budgets = explorer.pixels(place, "budget").reshape(-1, 3)
        assert len(np.unique(budgets, axis=0)) == 2
        shares = explorer.row(place).find_elements("css selector", "tbody tr")
        before, after = (tensors["probabilities"][4, when, 1] for when in (0, 1))
        wanted = f"{HOSTILE} (true) {100 * before:.0f} % {100 * after:.0f} %"
        assert wanted in [" ".join(share.text.split()) for share in shares]
    assert explorer.row(0).find_element("class name", "evaluated").is_displayed() is False
    assert explorer.row(1).find_element("class name", "flags").text == "autoattack ✓"  # test image 14


def test_a_class_and_a_run_can_be_picked(explorer):
    explorer.open().choose("class", "ring")
    assert explorer.images == [2, 5, 8, 11]
    assert explorer.image == 2
    assert explorer.at("count").text == "4 of 12 images"
    explorer.driver.find_elements("css selector", "#explorer-runs input")[0].click()
    explorer.settle()
    assert [explorer.row(place).is_displayed() for place in (0, 1)] == [False, True]
    explorer.click("reset")
    assert explorer.images == list(range(N))
    assert explorer.row(0).is_displayed()


def test_the_slider_goes_through_kept_epochs(explorer, runs):
    explorer.open()
    assert explorer.at("epoch-name").text == "best checkpoint"
    explorer.at("epoch").send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)  # from best over 3 to 2
    explorer.settle()
    assert explorer.at("epoch-name").text == "epoch 2"
    at, part = runs[1]
    assert np.array_equal(explorer.pixels(0, "heat map"), magma(at["epoch-2.heat"][0]))
    assert np.array_equal(explorer.pixels(1, "heat map"), magma(part["epoch-1.heat"][0]))
    assert "epoch 1 (epoch 2 was not kept), in burn-in" in explorer.row(1).text
    assert "autoattack" not in explorer.row(1).text  # a result of the best checkpoint
    explorer.click("next")
    ActionChains(explorer.driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    explorer.settle()
    assert (explorer.at("epoch-name").text, explorer.image) == ("epoch 1", 1)


def test_filters_and_sorting_list_the_right_images(explorer, runs):
    (at, part), robust = runs[1:]
    explorer.open().filter(0, "shown:right").filter(1, "shown:wrong")
    held = [right(one, 0) & right(one, 1) for one in (at, part)]
    expected = np.flatnonzero(held[0] & ~held[1]).tolist()
    assert expected
    assert explorer.images == expected
    explorer.filter(0, "").filter(1, "autoattack:broken")
    known = np.arange(N) + 10 < 16
    expected = np.flatnonzero(right(part, 0) & known & ~robust[(np.arange(N) + 10) % 16]).tolist()
    assert expected
    assert explorer.images == expected
    explorer.filter(1, "").choose("sort", "true class loses most by the attack")
    true = [one["probabilities"][np.arange(N), :, np.arange(N) % 3] for one in (at, part)]
    fall = np.mean([one[:, 1] - one[:, 0] for one in true], axis=0)
    assert explorer.images == np.argsort(fall).tolist()
    explorer.choose("sort", "runs differ most, attacked")
    assert explorer.images == np.argsort(-np.abs(true[0][:, 1] - true[1][:, 1])).tolist()


def test_no_match_says_so(explorer):
    explorer.open().filter(0, "natural:wrong").filter(1, "natural:wrong").choose("class", "ring")
    assert explorer.images == []
    assert explorer.at("none").is_displayed()
    assert not explorer.at("stage").is_displayed()
    assert explorer.press(Keys.ARROW_RIGHT).click("reset").at("stage").is_displayed()


def test_arrow_keys_move_through_the_list(explorer):
    explorer.open("#image=10").press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert explorer.image == 2
    explorer.press(Keys.ARROW_LEFT)
    assert explorer.image == 1
    explorer.driver.find_elements("css selector", "#explorer-gallery button")[1].click()
    explorer.press(Keys.END)
    assert explorer.image == N - 1
    assert explorer.driver.switch_to.active_element.get_attribute("aria-current") == "true"
    explorer.press(Keys.ARROW_RIGHT)
    assert explorer.image == N - 1
    explorer.press(Keys.HOME)
    assert explorer.image == 0


def test_a_link_opens_the_same_view(explorer):
    explorer.open().choose("class", "ring").choose("sort", "runs differ most, attacked").filter(0, "natural:right")
    explorer.click("share").click("outline").at("epoch").send_keys(Keys.HOME)
    seen, link = explorer.settle().click("next").view(), explorer.at("link").get_attribute("href")
    assert explorer.driver.current_url == link
    assert explorer.open().view() != seen
    assert explorer.open(link.removeprefix(explorer.url)).view() == seen
    assert explorer.js("return document.getElementById('explorer-root').getBoundingClientRect().top") < 900
    assert explorer.open("#image=nothing&epoch=99&sort=x&run0=y&hide=7").image == 0  # what is not there is left out


def test_values_under_the_pointer_and_the_outline(explorer, runs):
    explorer.open("#image=13")
    frame = explorer.row(1).find_elements("class name", "frame")[1]
    size = frame.rect["width"]
    explorer.js("arguments[0].scrollIntoView({block: 'center'})", frame)
    offset = (5.5 / SIZE - 0.5) * size, (2.5 / SIZE - 0.5) * size  # pixel x 5, y 2
    ActionChains(explorer.driver).move_to_element_with_offset(frame, *map(round, offset)).perform()
    for place, tensors in enumerate(runs[1]):
        text = explorer.row(place).find_element("class name", "readout").text
        heat, budget = tensors["heat"][3, 2, 5], tensors["budget"][3, 0, 2, 5]
        assert text.startswith(
            f"x 5, y 2: heat {np.rint(heat * 255) / 255:.2f}, budget {round(budget * 255)}/255, colour"
        )
    path = explorer.row(0).find_element("css selector", "path")
    assert sorted(path.get_attribute("d").split("M")[1:]) == sorted(
        ["1 2h1", "2 2h1", "1 4h1", "2 4h1", "1 2v1", "1 3v1", "3 2v1", "3 3v1"]
    )
    assert explorer.click("outline").row(0).find_element("css selector", "path").get_attribute("d") == ""


def test_the_change_is_signed_or_a_share_of_the_budget(explorer, runs):
    explorer.open()
    tensors = runs[1][0]
    change = (tensors["adversarial"] - tensors["picture"])[0].mean(0) * 255 / 8
    shown = explorer.pixels(0, "change")
    assert (shown[..., 0] > shown[..., 2])[change > 0.1].all()  # red where it is brighter
    assert (shown[..., 0] < shown[..., 2])[change < -0.1].all()
    explorer.click("share")
    share = np.abs(tensors["adversarial"] - tensors["picture"])[0].mean(0) / tensors["budget"][0, 0]
    expected = matplotlib.colormaps["viridis"](np.clip(share, 0, 1))[..., :3] * 255
    assert np.abs(explorer.pixels(0, "change") - expected).max() < 16  # the change is stored in steps of eps / 16


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_the_window_in_both_schemes_and_a_hostile_name_is_text(explorer, width, scheme):
    explorer.open(width=width, scheme=scheme).choose("class", HOSTILE)
    assert explorer.js("return document.documentElement.scrollWidth") <= width
    background = explorer.js("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.strip("rgb()").split(","))) < 200) == (scheme == "dark")
    assert explorer.at("title").text == f"Test image 11: {HOSTILE} (photos/11.png)"
    assert explorer.js("return window.ran") is None
    unnamed = "[...document.querySelectorAll('.explorer :is(select, input, button)')].filter((one) => !one.offsetParent"
    unnamed += " ? false : !(one.labels?.length || one.ariaLabel || one.textContent.trim()))"
    assert explorer.js(f"return {unnamed}.length") == 0


@pytest.mark.parametrize("kind", ["older form", "grey rectangular", "64 pixels", "six runs of two sets"])
def test_other_runs_can_be_explored(chromium, tmp_path, make_run, content, explained, arrays, kind):
    grey = content(1, colours=1, height=6, width=9)
    folders = {
        "older form": lambda: [make_run("old")],
        "grey rectangular": lambda: [make_run("grey", explain=grey[0], tensors=grey[1])],
        "64 pixels": lambda: [make_run("large", explain=explained(), tensors=arrays(height=64, width=64))],
        "six runs of two sets": lambda: [
            *(make_run(f"run-{k}") for k in range(4)),
            make_run("grey", explain=grey[0], tensors=grey[1]),
            make_run("bare", explain=None),
        ],
    }[kind]()
    page = Explorer(chromium, write_report(folders, tmp_path / "r.html").as_uri()).open()
    assert page.at("epochs").is_displayed() == ("grey" in kind or "six" in kind)
    shape = page.pixels(0, "attacked").shape[:2]
    assert shape == {"grey rectangular": (6, 9), "64 pixels": (64, 64)}.get(kind, (4, 4))
    if kind == "older form":
        assert "disc (true)\n91 %\nnot recorded" in page.row(0).text.replace(" not", "\nnot").replace(" 91", "\n91")
    if kind == "six runs of two sets":
        assert "No pictures of this run yet." in page.row(5).text
        assert "This run has no pictures of this image." in page.row(4).text
        page.press(Keys.END)
    assert chromium.get_log("browser") == []


def test_without_javascript_the_static_pictures_are_there(explorer):
    explorer.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        explorer.driver.get(explorer.url)
        assert explorer.driver.find_element("css selector", ".images img").is_displayed()
        assert not explorer.at("root").is_displayed()
    finally:
        explorer.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
