"""The page in a real Chromium, opened from disk: `python -m pytest -m browser -n 0` (see docs/page.md)."""

import base64
import dataclasses
import hashlib
import itertools
import json
import shutil
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from left_out import needs
from made_up_page import NASTY, SLOTS, made_up_examples, made_up_report, renamed
from slotnorm.experiments import MAIN
from slotnorm.report.appearance import fixed
from slotnorm.report.page.page import render
from slotnorm.report.pictures import illustrate

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # of the driver's sockets

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,1000",
]  # fmt: skip
AXE = Path(__file__).parent / "axe-core" / "axe.min.js"
DOCS = Path(__file__).parents[1] / "docs"
LEFT, RIGHT, HOME, END, TAB, ESCAPE, DOWN = "\ue012", "\ue014", "\ue011", "\ue010", "\ue004", "\ue00c", "\ue015"
ENTER = "\ue007"
STILL = {"name": "prefers-reduced-motion", "value": "reduce"}
DARK = {"name": "prefers-color-scheme", "value": "dark"}


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    browser.command_executor.client_config.timeout = 900  # axe-core on a busy machine; its own limit is 120 s
    browser.set_script_timeout(900)
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("page with spaces ü")


@pytest.fixture(scope="module")
def address(folder):
    """Names with markup, and two studies: the second has fewer scenes and no true masks."""
    report = renamed(made_up_report(), NASTY)
    examples = [dataclasses.replace(made_up_examples(norm, scenes=3), labels=None) for norm in MAIN[:2]]
    bare = dataclasses.replace(report.sections[0], stem="second", illustration=illustrate(examples, 5))
    bare = dataclasses.replace(bare, section=dataclasses.replace(bare.section, title="second"))
    path = folder / "index.html"
    path.write_text(render(dataclasses.replace(report, sections=(*report.sections, bare)), NASTY, NASTY), "utf-8")
    return path.as_uri()


def opened(driver, address: str, *features: dict, width: int = 1280, height: int = 1000, mobile: bool = False):
    """The page as a reader meets it, once its pictures are drawn."""
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": list(features)})
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get("about:blank")  # else an address with another hash does not load anew
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(address)
    wait(driver, "document.querySelector('.explorer').dataset.shown || !document.querySelector('.tiles')")
    return driver


@pytest.fixture
def page(driver, address):
    """Without motion, so that the slider stands where it stands."""
    return opened(driver, address, STILL)


def wait(driver, expression: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20).until(lambda browser: browser.execute_script(f"return {expression}"))


def shown(driver, words: str) -> None:
    """Wait until the slider shows a study, a number of slots and a scene."""
    wait(driver, f"document.querySelector('.explorer').dataset.shown === {json.dumps(words)}")


def pixels(driver, selector: str) -> str:
    return driver.execute_script(f"return document.querySelector({json.dumps(selector)}).toDataURL()")


def read(driver, selector: str) -> str:
    return driver.execute_script(f"return document.querySelector({json.dumps(selector)}).textContent")


def press(driver, selector: str, *keys: str) -> None:
    from selenium.webdriver.common.by import By

    driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)


def point(driver, element, across: float = 0.5, down: float = 0.5) -> None:
    """Move the pointer to a share of an element's width and height."""
    from selenium.webdriver import ActionChains

    size = element.rect
    offset = round((across - 0.5) * size["width"]), round((down - 0.5) * size["height"])
    ActionChains(driver).move_to_element_with_offset(element, *offset).perform()


def find(driver, selector: str):
    from selenium.webdriver.common.by import By

    return driver.find_element(By.CSS_SELECTOR, selector)


def bring(driver, selector: str):
    """Scroll to an element and wait until it is drawn."""
    element = find(driver, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    return element


def plotted(driver, selector: str):
    """A panel's drawing, once it is there."""
    bring(driver, selector)
    wait(driver, f"document.querySelector({json.dumps(selector + ' svg')})")
    return find(driver, f"{selector} svg")


PANEL = "#more-slots ~ .curves .plot"
PATHS = "#background ~ .curves .plot"


def test_it_opens_without_a_message_or_a_request(driver, address):
    opened(driver, address)
    wait(driver, "document.querySelector('#into-slots').dataset.shown")
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert sent, "the log of requests is empty: it must have the page itself"
    assert all(url.startswith(("file:", "data:", "about:")) for url in sent), sent
    assert [url for url in sent if url.startswith("file:")] == [driver.current_url.split("#")[0]]


def test_the_policy_stops_what_is_not_the_page_own(page):
    page.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<img id=foreign src=\"https://example.org/x.png\">');"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken = 1\">');"
    )
    wait(page, "document.querySelector('#foreign').complete")
    assert page.execute_script("return window.broken") is None
    assert any("Content Security Policy" in entry["message"] for entry in page.get_log("browser"))


def test_a_name_with_markup_is_shown_as_it_is(page):
    assert page.title == NASTY
    assert read(page, "h1") == NASTY
    assert page.execute_script("return document.querySelectorAll('main script').length") == 0
    assert read(page, ".explorer .about").startswith(f"Study {NASTY}: scenes with 2 to 4 objects")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (1920, 1080), (3840, 2160)])
def test_the_first_screen_has_the_finding_and_every_picture(driver, address, width, height):
    opened(driver, address, STILL, width=width, height=height)
    for selector in (".finding", ".control", ".tiles figure:last-child", ".strip"):
        box = find(driver, selector).rect
        assert box["y"] >= 0, selector
        assert box["y"] + box["height"] <= height, selector
        assert box["x"] + box["width"] <= width, selector
    assert read(driver, ".finding").startswith("With 15 slots instead of 5,")
    assert find(driver, ".explorer").rect["x"] > find(driver, ".finding").rect["x"] + 200, "beside each other"


def test_on_a_phone_the_finding_comes_first_and_the_pictures_begin_on_the_first_screen(driver, address):
    opened(driver, address, STILL, width=420, height=900, mobile=True)
    finding, tile = find(driver, ".finding").rect, find(driver, ".tiles figure:last-child canvas").rect
    assert finding["y"] + finding["height"] < tile["y"]
    assert tile["y"] + tile["height"] < 900
    assert find(driver, ".hedges").rect["y"] > tile["y"]


def test_on_a_phone_the_slider_says_what_it_moves(driver, address):
    opened(driver, address, STILL, width=420, height=900, mobile=True)
    boxes = [find(driver, f".control {part}").rect for part in (".play", "label", "output", ".track")]
    play, label, output, track = boxes
    assert read(driver, ".control label") == "Number of slots"
    assert play["x"] + play["width"] <= label["x"] == track["x"]
    assert label["y"] + label["height"] <= track["y"] + 1
    assert label["x"] + label["width"] <= output["x"]


def test_it_plays_once_on_arrival_from_the_training_k_to_three_times_it(driver, address):
    opened(driver, address)
    first = read(driver, ".explorer output")
    assert first == "15", "it already stands there"
    seen = [first]
    for _ in range(200):
        slots, playing = driver.execute_script(
            "const shown = document.querySelector('.explorer');"
            "return [shown.querySelector('output').textContent, shown.dataset.playing]"
        )
        seen += [slots] if slots != seen[-1] else []
        if not playing:
            break
        time.sleep(0.03)
    assert seen == ["15", "5", "7", "10", "15"]
    time.sleep(1.5)
    assert read(driver, ".explorer output") == "15", "only once"
    assert read(driver, ".play") == "Play"
    driver.execute_script(
        "const output = document.querySelector('.explorer output');"
        "window.seen = [];"
        "new MutationObserver(() => window.seen.push(output.textContent)).observe(output, { childList: true });"
    )
    find(driver, ".play").click()
    wait(driver, "window.seen[0] === '5'")
    assert read(driver, ".play") == "Stop"
    find(driver, ".play").click()
    assert read(driver, ".play") == "Play"


def test_a_reader_who_wants_no_motion_gets_none(page):
    assert read(page, ".explorer output") == "15"
    assert not page.execute_script("return document.querySelector('.explorer').dataset.playing")
    time.sleep(2)
    assert read(page, ".explorer output") == "15"
    assert page.execute_script("return getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_touching_the_slider_ends_the_play(driver, address):
    opened(driver, address)
    press(driver, ".explorer input[type=range]", LEFT)
    shown(driver, "toy 10 " + read_scene(driver))
    time.sleep(2)
    assert read(driver, ".explorer output") == "10"


def read_scene(driver) -> str:
    return driver.execute_script("return document.querySelector('.strip :checked').value * 1 + 1 + ''")


def test_arrow_keys_on_the_slider_change_the_pictures(page):
    scene = read_scene(page)
    before = {norm: pixels(page, f"[data-variant='{norm}'] canvas") for norm in range(4)}
    words = read(page, ".variant .score"), read(page, ".variant .here")
    press(page, ".explorer input[type=range]", HOME)
    shown(page, f"toy {SLOTS[0]} {scene}")
    after = {norm: pixels(page, f"[data-variant='{norm}'] canvas") for norm in range(4)}
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert (read(page, ".variant .score"), read(page, ".variant .here")) != words
    label = page.execute_script("return document.querySelector('canvas.segmentation').getAttribute('aria-label')")
    assert label == f"Baseline: segments with {SLOTS[0]} slots"
    assert page.execute_script("return document.querySelector('.explorer input').ariaValueText") == f"{SLOTS[0]} slots"
    press(page, ".explorer input[type=range]", END)
    shown(page, f"toy {SLOTS[-1]} {scene}")
    assert {norm: pixels(page, f"[data-variant='{norm}'] canvas") for norm in range(4)} == before


def test_another_scene_is_chosen_by_keyboard_and_by_pointer(page):
    from selenium.webdriver.common.by import By

    place = int(read_scene(page))
    before = pixels(page, "canvas.input"), pixels(page, "[data-variant='2'] canvas")
    press(page, ".strip input:checked", RIGHT)
    shown(page, f"toy 15 {place % 12 + 1}")
    assert pixels(page, "canvas.input") != before[0]
    assert pixels(page, "[data-variant='2'] canvas") != before[1]
    page.find_elements(By.CSS_SELECTOR, ".strip label")[place - 1].click()
    shown(page, f"toy 15 {place}")
    assert pixels(page, "canvas.input") == before[0]


def test_dragging_over_the_pictures_moves_the_slider(page):
    from selenium.webdriver import ActionChains

    tile = find(page, ".tiles figure")
    ActionChains(page).click_and_hold(tile).move_by_offset(-44, 0).release().perform()
    shown(page, f"toy {SLOTS[-3]} {read_scene(page)}")


def test_an_address_leads_to_a_study_a_number_of_slots_and_a_scene(driver, address):
    opened(driver, f"{address}#toy&k=7&scene=3")
    shown(driver, "toy 7 3")
    time.sleep(1.6)
    assert read(driver, ".explorer output") == "7", "nothing plays where a place was asked for"
    driver.execute_script("location.hash = 'second&k=10&scene=2'")
    shown(driver, "second 10 2")
    assert driver.execute_script("return document.querySelectorAll('.tiles .variant').length") == 2
    assert read(driver, ".tiles").startswith("Scene"), "there is an image, and no true masks"
    assert "No true masks" in read(driver, ".tiles")
    assert "have no true masks" in read(driver, "#into-scores")
    opened(driver, f"{address}#toy&k=999&scene=99")
    shown(driver, f"toy 15 {read_scene(driver)}")
    junk = (
        "%E0%A4%A&k=x", "toy&k=&scene=", "toy&k=NaN&scene=-1", "toy&k=-1e999&scene=1.5", "toy&&=&=1&__proto__=2&k", "&",
        "__proto__&k=7", "toy&scene=length", "<script>alert(1)</script>&k=5", "#toy", "toy&k=7&k=999",
    )  # fmt: skip
    for place in junk:
        opened(driver, f"{address}#{place}", STILL)
        wait(driver, "document.querySelector('.explorer').dataset.shown")
        assert read(driver, ".explorer output") in ("5", "15"), place
        assert driver.execute_script("return document.querySelectorAll('.strip :checked').length") == 1
    assert driver.get_log("browser") == []


def test_what_is_shown_stands_in_the_address(page):
    press(page, ".explorer input[type=range]", LEFT)
    shown(page, f"toy 10 {read_scene(page)}")
    there = page.current_url
    assert there.endswith(f"#toy&k=10&scene={read_scene(page)}")
    assert find(page, ".about a").get_attribute("href") == there


def test_a_link_of_the_contents_leads_to_its_part(page):
    find(page, ".contents a[href='#claims']").click()
    wait(page, "Math.abs(document.querySelector('#claims').getBoundingClientRect().top) < 200")
    assert read(page, ".explorer output") == "15"


def test_another_study_is_chosen(page):
    page.execute_script(
        "const s = document.querySelector('.explorer select'); s.value = 'second'; s.dispatchEvent(new Event('change'))"
    )
    wait(page, "document.querySelector('.explorer').dataset.shown.startsWith('second 15')")
    assert page.execute_script("return document.querySelectorAll('.strip input').length") == 3


def test_a_slot_is_seen_alone_by_pointer_focus_and_from_the_picture(page):
    from selenium.webdriver.common.by import By

    bring(page, "#into-slots")
    wait(page, "document.querySelector('#into-slots').dataset.shown")
    together = pixels(page, ".big")
    buttons = page.find_elements(By.CSS_SELECTOR, ".slots button")
    assert len(buttons) == 5
    assert "slots hold 1 % of the picture or more. The scene has" in read(page, ".large")
    page.execute_script("arguments[0].focus()", buttons[1])
    assert read(page, ".large").startswith("Slot 2 of 5 holds")
    alone = pixels(page, ".big")
    assert alone != together
    press(page, ".slots button:nth-child(2)", TAB)
    assert read(page, ".large").startswith("Slot 3 of 5 holds")
    point(page, buttons[1])
    assert pixels(page, ".big") == alone
    point(page, find(page, ".big"), 0.02, 0.02)
    assert "chosen" in buttons[0].get_attribute("class"), "the background's slot comes first"
    point(page, find(page, "#scores"))
    assert pixels(page, ".big") == together
    find(page, "[name=into-slots-slots][value='1']").click()
    wait(page, "document.querySelectorAll('.slots button').length === 15")
    find(page, "[name=into-slots-norm][value='0']").click()
    wait(page, "document.querySelector('#into-slots').dataset.shown.startsWith('0 15')")


def test_few_slots_fill_the_room_beside_the_large_picture(driver, address):
    opened(driver, address, STILL, width=1280, height=800)
    bring(driver, "#into-slots")
    wait(driver, "document.querySelector('#into-slots').dataset.shown")
    (five,) = driver.execute_script("return [...document.querySelectorAll('.slots')].map((e) => e.childElementCount)")
    assert five == 5
    large, slots, card = (find(driver, f"#into-slots {part}").rect for part in (".big", ".slots", ".inside"))
    edges = "[...document.querySelectorAll('.slots button')].map((slot) => slot.getBoundingClientRect().right)"
    right = driver.execute_script(f"return Math.max(...{edges})")
    assert right > card["x"] + card["width"] - 5
    assert slots["height"] > large["height"]


def test_f_ari_and_ari_are_seen_in_pairs_of_pixels(page):
    """With all slots of a scene right, every pair agrees; the score beside it is that of the row."""
    bring(page, "#into-scores")
    wait(page, "document.querySelector('#into-scores').dataset.shown")
    texts = [read(page, f"#into-scores .row figure:nth-child({number})") for number in (3, 4)]
    assert texts[0].startswith("F-ARI 0.")
    assert texts[0].endswith("pixels of objects only: 100.0 % of pairs agree")
    assert texts[1].startswith("ARI 0.")
    assert texts[1].endswith("all pixels: 100.0 % of pairs agree")
    canvas = find(page, "#into-scores .row figure:nth-child(4) canvas")
    quiet = pixels(page, "#into-scores .row figure:nth-child(4) canvas")
    point(page, canvas, 0.5, 0.5)
    assert read(page, "#into-scores .row figure:nth-child(4)").endswith("this pixel: 100 % of its pairs agree")
    assert pixels(page, "#into-scores .row figure:nth-child(4) canvas") != quiet
    point(page, find(page, "#scores"))
    assert pixels(page, "#into-scores .row figure:nth-child(4) canvas") == quiet
    canvas.send_keys(RIGHT, DOWN)
    assert "this pixel" in read(page, "#into-scores .row figure:nth-child(4)")
    canvas.send_keys(ESCAPE)
    assert pixels(page, "#into-scores .row figure:nth-child(4) canvas") == quiet


def test_the_share_of_pairs_is_that_of_all_pairs(page):
    """Counted from the pictures' own data, pair by pair."""
    wait(page, "document.querySelector('#into-scores').dataset.shown")
    find(page, "[name=into-scores-norm][value='0']").click()
    find(page, "[name=into-scores-slots][value='1']").click()
    wait(page, "document.querySelector('#into-scores').dataset.shown.startsWith('0 15')")
    counted = page.execute_script("""
        const [{ labels }, truth] = [lookInto(), unpack(sceneShown().labels)];
        const share = (counts) => {
          let [agree, all] = [0, 0];
          for (let a = 0; a < truth.length; a += 1) for (let b = 0; b < a; b += 1) {
            if (!counts(a) || !counts(b)) continue;
            all += 1;
            agree += (truth[a] === truth[b]) === (labels[a] === labels[b]);
          }
          return (100 * agree / all).toFixed(1);
        };
        return [share((place) => truth[place] > 0), share(() => true)];
    """)
    for number, share in zip((3, 4), counted, strict=True):
        assert f"{share} % of pairs agree" in read(page, f"#into-scores .row figure:nth-child({number})")


def test_pointing_at_a_curve_reads_out_its_values(page):
    from selenium.webdriver.common.by import By

    plot = plotted(page, PANEL)
    readout = page.find_element(By.CSS_SELECTOR, ".panel .readout")
    assert not readout.is_displayed()
    point(page, plot, 0.02)
    panel = page.execute_script(
        "return JSON.parse(document.getElementById('data').textContent)"
        f".panels[document.querySelector({json.dumps(PANEL)}).dataset.panel]"
    )
    lines = readout.text.splitlines()
    assert lines[0] == f"{panel['points'][0]} slots"
    for line, curve in zip(lines[1:], panel["all"]["curves"], strict=True):
        low, median, high = (fixed(curve[name][0]) for name in ("low", "median", "high"))
        assert line.endswith(f"{median} ({low} to {high})")
    for height in (400, 1400):  # wherever the window ends, all of it can be read, and it hides no curve
        metrics = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.execute_script("arguments[0].scrollIntoView({block: 'end', behavior: 'instant'})", plot)
        point(page, plot, 0.6)
        box, drawn = (
            page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", e) for e in (readout, plot)
        )
        assert box["top"] >= 0
        assert box["bottom"] <= height
        inside = (drawn["top"] + 0.1 * drawn["height"], drawn["top"] + 0.85 * drawn["height"])
        assert box["bottom"] <= inside[0] or box["top"] >= inside[1]
    point(page, find(page, "#more-slots"))
    assert not readout.is_displayed()


def test_numbers_below_zero_are_written_as_in_the_tables(page):
    values = [-0.0004, -0.2, 0.0, 0.2]
    assert page.execute_script("return arguments[0].map((value) => written(value))", values) == list(map(fixed, values))


def test_arrow_keys_read_a_curve(page):
    plot = plotted(page, PANEL)
    plot.send_keys(RIGHT, RIGHT)
    assert read(page, ".panel .readout").startswith("3 slots")
    plot.send_keys(ESCAPE)
    assert page.execute_script("return document.querySelector('.panel .readout').hidden")


def test_a_curve_is_drawn_where_its_values_are_and_named_at_its_end(page):
    plotted(page, PANEL)
    drawn = page.execute_script("""
        const plot = plots.get(document.querySelector(arguments[0]).dataset.panel);
        const names = [...plot.svg.querySelectorAll("text.name")].map((text) => [text.textContent, text.getBBox()])
          .map(([name, box]) => [name, box.x, box.y, box.x + box.width, box.y + box.height]);
        const line = plot.svg.querySelector(".line").getAttribute("d");
        return { names, line, width: plot.width, box: plot.box, limits: plot.shown.limits,
                 median: plot.shown.curves[0].median };
    """, PANEL)  # fmt: skip
    points = [tuple(map(float, part.split())) for part in drawn["line"].replace("M", "L").split("L") if part]
    low, high = drawn["limits"]
    top, bottom = drawn["box"]["top"], drawn["box"]["bottom"]
    for (_, y), value in zip(points, drawn["median"], strict=True):
        assert y == pytest.approx(top + (high - value) / (high - low) * (bottom - top), abs=0.06)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert sorted(name for name, *_ in drawn["names"]) == ["Baseline", "Batch Norm", "Layer Norm", "Weighted Sum"]
    rows = sorted((upper, lower) for _, _, upper, _, lower in drawn["names"])
    assert all(first[1] - 3 <= second[0] for first, second in itertools.pairwise(rows)), "none hides another"
    for _, left, _, right, _ in drawn["names"]:
        assert left > drawn["box"]["right"]
        assert right <= drawn["width"] + 1


def test_the_numbers_beside_a_small_scale_are_not_cut_off(page):
    plotted(page, PANEL)
    left = page.execute_script("""
        const plot = plots.get(document.querySelector(arguments[0]).dataset.panel);
        plot.panel.all.limits = [0, 0.00175];
        plot.panel.kept.limits = [0, 0.00175];
        plot.draw();
        return [...plot.svg.querySelectorAll("text.left")].map((text) => [text.textContent, text.getBBox().x]);
    """, PANEL)  # fmt: skip
    assert "0.00025" in [words for words, _ in left]
    assert all(x >= 0 for _, x in left)


def test_paths_are_read_at_the_nearest_place_and_by_keyboard(page):
    plot = plotted(page, PATHS)
    plot.send_keys(HOME)
    readout = find(page, "#background ~ .curves .readout")
    assert readout.text.startswith("5 slots")
    assert "F-ARI 0." in readout.text
    assert ", ARI 0." in readout.text
    rings = page.execute_script("return arguments[0].querySelector('.cross').getAttribute('d')", plot)
    assert rings.count("M") == 4
    plot.send_keys(RIGHT)
    assert readout.text.startswith("6 slots")
    assert page.execute_script("return arguments[0].querySelector('.cross').getAttribute('d')", plot) != rings


def test_all_values_are_listed_when_they_are_asked_for(page):
    bring(page, "#more-slots ~ .curves .values summary").click()
    wait(page, "document.querySelector('.values table')")
    rows = page.execute_script("return document.querySelectorAll('.values table')[0].rows.length")
    assert rows == 1 + 15
    assert "(" in read(page, ".values td:nth-child(2)") + read(page, ".values tbody td")


def test_failed_runs_are_left_out_by_the_toggle(page):
    from selenium.webdriver.common.by import By

    def visible(selector: str) -> list[bool]:
        return [part.is_displayed() for part in page.find_elements(By.CSS_SELECTOR, selector)]

    plotted(page, PANEL)
    before = page.execute_script(f"return document.querySelector({json.dumps(PANEL)}).querySelectorAll('.run').length")
    page.execute_script("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert all(visible(".all"))
    assert not any(visible(".kept"))
    bring(page, "#without-failed").send_keys(" ")
    assert not any(visible(".all"))
    assert all(visible(".kept"))
    bring(page, PANEL)
    wait(page, f"document.querySelector({json.dumps(PANEL)}).querySelectorAll('.run').length === {before - 1}")


@pytest.mark.parametrize("width", [320, 375, 420, 768, 1024])
def test_a_narrow_screen_does_not_scroll_sideways(driver, address, width):
    opened(driver, address, STILL, width=width, height=800, mobile=True)
    wait(driver, "document.querySelector('#into-scores').dataset.shown")
    assert driver.execute_script("return innerWidth") == width
    assert driver.execute_script("return document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("medium", "width"), [("", 420), ("print", 739)])
def test_on_a_phone_and_on_paper_no_name_of_six_normalizations_is_broken(driver, folder, medium, width):
    norms = (*MAIN, "unnormalized", "kd_layer_norm")
    path = folder / "six.html"
    path.write_text(render(made_up_report(failed=(), norms=norms, scenes=2)), "utf-8")
    opened(driver, path.as_uri(), STILL, width=width, height=860, mobile=not medium)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": [STILL]})
    lines = driver.execute_script("""
        return [...document.querySelectorAll(".tiles .variant b")].map((name) => {
          const words = name.textContent.split(/[ -]/).length;
          const range = document.createRange(); range.selectNodeContents(name);
          const tops = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
          return [name.textContent, words, tops.size];
        });
    """)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert len(lines) == 6
    assert all(rows <= words for _, words, rows in lines), lines


def test_dark_mode_is_dark_and_readable(driver, address):
    opened(driver, address, STILL)
    light = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [STILL, DARK]})
    assert luminance(light) > 0.9
    background = luminance(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert background < 0.02
    for selector, least in (("body", 7), (".quiet", 4.5), (".about a", 4.5), (".failed", 4.5)):
        color = driver.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).color")
        assert (luminance(color) + 0.05) / (background + 0.05) >= least, selector


def luminance(color: str) -> float:
    """WCAG's relative luminance of rgb(...)."""
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_first_study_is_open_and_another_is_drawn_when_it_is_unfolded(page):
    folded = "#more-slots ~ .folded"
    assert read(page, "#more-slots ~ h3").startswith(NASTY)
    assert read(page, f"{folded} h3").startswith("second")
    assert page.execute_script(f"return document.querySelectorAll({json.dumps(folded + ' svg')}).length") == 0
    bring(page, f"{folded} summary").send_keys(ENTER)
    plotted(page, f"{folded} .plot")


def test_print_has_every_curve_on_white_and_no_controls(driver, address):
    opened(driver, address, STILL, DARK)
    document = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert document.startswith(b"%PDF")
    assert driver.execute_script("return [...plots.values()].every((plot) => plot.svg)")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [STILL, DARK]})
    background = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert luminance(background) == pytest.approx(1)
    assert luminance(driver.execute_script("return getComputedStyle(document.body).color")) < 0.05
    for selector in (".play", ".strip", ".explorer input[type=range]", "#without-failed", ".values"):
        assert not find(driver, selector).is_displayed(), selector
    for selector in (".finding", ".tiles canvas", ".drawing", ".forest"):
        assert find(driver, selector).is_displayed(), selector
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_printing_while_it_plays_shows_where_the_play_ends(driver, address):
    opened(driver, address, STILL)
    wanted = [pixels(driver, f".variant:nth-of-type({place}) canvas") for place in (3, 4)]
    find(driver, ".play").click()
    wait(driver, "document.querySelector('.explorer output').textContent === '7'")
    driver.execute_cdp_cmd("Page.printToPDF", {})
    assert read(driver, ".explorer output") == "15"
    assert read(driver, ".play") == "Play"
    shown(driver, "toy 15 " + read_scene(driver))
    assert [pixels(driver, f".variant:nth-of-type({place}) canvas") for place in (3, 4)] == wanted
    time.sleep(1)
    assert read(driver, ".explorer output") == "15", "it does not go on"


def test_a_page_that_is_printed_as_soon_as_it_is_loaded_has_every_picture(driver, address):
    """It is printed before anything else could run: what had to be waited for would be blank."""
    draw = """
        addEventListener("load", () => {
          dispatchEvent(new Event("beforeprint"));
          window.atOnce = [...document.querySelectorAll("canvas")].map((canvas) => canvas.toDataURL());
        });
    """
    early = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": draw})
    try:
        opened(driver, address, STILL)
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", early)
    for part in ("into-slots", "into-scores", "into-reconstruction"):
        assert driver.execute_script(f"return document.querySelectorAll('#{part} canvas').length") > 2
    time.sleep(1)
    at_rest = driver.execute_script("return [...document.querySelectorAll('canvas')].map((c) => c.toDataURL())")
    assert driver.execute_script("return atOnce") == at_rest


@pytest.mark.parametrize("limits", [(0.47, 0.99), (0.5, 0.9), (-0.05, 1.04), (0.79, 0.81), (0.0021, 0.0046), (0, 1)])
def test_an_axis_has_enough_numbers_and_none_lies_on_another(driver, address, limits):
    opened(driver, address, STILL, width=420, height=900, mobile=True)
    plotted(driver, PANEL)
    boxes = driver.execute_script("""
        const plot = plots.get(document.querySelector(arguments[0]).dataset.panel);
        plot.panel.all.limits = arguments[1];
        plot.draw();
        return [...plot.svg.querySelectorAll("text.left")].map((text) => text.getBBox())
          .map(({ y, height }) => ({ y, height }));
    """, PANEL, limits)  # fmt: skip
    assert len(boxes) >= 3
    assert all(lower["y"] >= upper["y"] + upper["height"] - 1 for upper, lower in itertools.pairwise(boxes[::-1]))


def test_bytes_are_unpacked_as_they_were_packed(page):
    random = np.random.default_rng(1)
    contents = [
        b"", b"a", bytes(100_000), bytes(range(256)) * 300, random.bytes(70_000),
        np.repeat(random.integers(52, size=9_000), random.integers(1, 300, size=9_000)).astype(np.uint8).tobytes(),
    ]  # fmt: skip
    strategies = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY)
    for content, level, strategy in itertools.product(contents, (0, 1, 9), strategies):
        packer = zlib.compressobj(level, strategy=strategy)
        text = base64.b64encode(packer.compress(content) + packer.flush()).decode()
        length, sha256 = page.execute_async_script(
            """
            const [text, done] = arguments;
            const bytes = inflate(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)));
            const pair = (byte) => byte.toString(16).padStart(2, "0");
            const hexadecimal = (buffer) => [...new Uint8Array(buffer)].map(pair).join("");
            crypto.subtle.digest("SHA-256", bytes).then((hash) => done([bytes.length, hexadecimal(hash)]));
            """,
            text,
        )
        assert (length, sha256) == (len(content), hashlib.sha256(content).hexdigest()), (len(content), level, strategy)


def test_everything_to_use_can_be_reached_with_the_tab_key(page):
    from selenium.webdriver import ActionChains

    reached = set()
    for _ in range(90):
        ActionChains(page).send_keys(TAB).perform()
        reached.add(page.execute_script(
            "const e = document.activeElement;"
            "return [e.tagName.toLowerCase(), e.type || '', getComputedStyle(e).outlineStyle !== 'none'].join(' ')"
        ))  # fmt: skip
    wanted = (
        "a", "select", "button", "input range", "input radio", "input checkbox", "canvas", "svg", "summary", "div",
    )  # fmt: skip
    for kind in wanted:
        assert any(entry.startswith(kind) for entry in reached), (kind, reached)
    seen = ("a", "svg", "summary", "button", "canvas", "input range")
    assert all(entry.endswith("true") for entry in reached if entry.startswith(seen))


@needs("tests/axe-core")
@pytest.mark.parametrize("features", [[STILL], [STILL, DARK]], ids=["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_axe_finds_nothing_serious(driver, address, features, width):
    """axe-core's rules for accessibility, with everything unfolded."""
    opened(driver, address, *features, width=width, mobile=width < 600)
    wait(driver, "document.querySelector('#into-scores').dataset.shown")
    driver.execute_script(
        "document.querySelectorAll('details').forEach((one) => (one.open = true)); plots.forEach(drawOnce)"
    )
    driver.execute_script(AXE.read_text(encoding="utf-8"))
    audit = driver.execute_async_script("axe.run(document).then(arguments[0])")
    assert audit["passes"], "no rule was asked"
    bad = [
        (rule["id"], rule["impact"], [node["target"] for node in rule["nodes"][:3]], rule["nodes"][0]["failureSummary"])
        for rule in audit["violations"]
        if rule["impact"] in ("serious", "critical")
    ]
    assert bad == []


def test_a_page_without_pictures_works(driver, folder):
    report = made_up_report(scenes=1)
    bare = dataclasses.replace(report, sections=(dataclasses.replace(report.sections[0], illustration=None),))
    path = folder / "bare.html"
    path.write_text(render(bare), encoding="utf-8")
    opened(driver, path.as_uri())
    plotted(driver, PANEL)
    assert driver.get_log("browser") == []
    assert "There are no pictures here" in read(driver, ".explorer")


@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("--slots auto", "+slots* +auto*"),
        ('"--slots auto"', "+slots* +auto*"),
        ("sweep toy --seeds 1 2", "+sweep* +toy* +seeds*"),
        ("--max-objects", "+max* +objects*"),
        ("batch norm", "batch norm"),
        ("Mises-Fisher", "Mises-Fisher"),
    ],
)
def test_a_search_of_the_documentation_may_begin_with_dashes(driver, typed, asked):
    driver.get("about:blank")
    script = "Worker.prototype.postMessage = (message) => { window.asked = message; };"
    driver.execute_script(script + f"(() => {{ {(DOCS / 'site.js').read_text('utf-8')} }})();")
    send = "Worker.prototype.postMessage.call(null, arguments[0]); return window.asked;"
    assert driver.execute_script(send, {"type": 2, "data": typed}) == {"type": 2, "data": asked}
    assert driver.execute_script(send, {"type": 0, "data": {"docs": []}}) == {"type": 0, "data": {"docs": []}}
