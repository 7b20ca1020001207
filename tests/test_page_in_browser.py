"""The page in a real Chromium, opened from disk: `python -m pytest -m browser -n 0` (see docs/page.md)."""

import json
import shutil

import pytest

from made_up_page import NASTY, SLOTS, made_up_report, renamed
from slotnorm.report.page.page import render

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]  # of the driver's sockets

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1280,1000",
]  # fmt: skip


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
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page with spaces ü") / "index.html"
    path.write_text(render(renamed(made_up_report(), NASTY), NASTY, NASTY), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def page(driver, address):
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(address)
    wait(driver, "document.querySelector('.slider').dataset.shown")
    return driver


def wait(driver, expression: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 20).until(lambda browser: browser.execute_script(f"return {expression}"))


def pixels(driver, selector: str) -> str:
    return driver.execute_script(f"return document.querySelector({json.dumps(selector)}).toDataURL()")


def press(driver, selector: str, *keys: str) -> None:
    from selenium.webdriver.common.by import By

    driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)


def shown(driver, slots: int) -> None:
    wait(driver, f"document.querySelector('.slider').dataset.shown === '{slots}'")


def test_it_opens_without_a_message_or_a_request(page):
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert sent, "the log of requests is empty: it must have the page itself"
    assert all(url.startswith(("file:", "data:")) for url in sent), sent
    assert [url for url in sent if url.startswith("file:")] == [page.current_url]


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
    assert page.execute_script("return document.querySelector('h1').textContent") == NASTY
    assert page.execute_script("return document.querySelector('h2').textContent") == NASTY
    assert page.execute_script("return document.querySelectorAll('main script').length") == 0


def test_arrow_keys_on_the_slider_change_the_pictures(page):
    before = {norm: pixels(page, f"[data-variant='{norm}'] .segmentation") for norm in range(4)}
    rebuilt = pixels(page, "[data-variant='0'] .reconstruction")
    words = page.execute_script("return document.querySelector('.variant .score').textContent")
    press(page, ".slider input[type=range]", "\ue014")  # right
    shown(page, SLOTS[1])
    after = {norm: pixels(page, f"[data-variant='{norm}'] .segmentation") for norm in range(4)}
    assert after[0] != before[0]
    assert after[1] != before[1]
    assert pixels(page, "[data-variant='0'] .reconstruction") != rebuilt
    assert page.execute_script("return document.querySelector('.variant .score').textContent") != words
    assert page.execute_script("return document.querySelector('.slider output').textContent") == str(SLOTS[1])
    label = page.execute_script("return document.querySelector('.segmentation').getAttribute('aria-label')")
    assert label == f"Baseline: segmentation, {SLOTS[1]} slots"
    press(page, ".slider input[type=range]", "\ue010")  # end
    shown(page, SLOTS[-1])
    press(page, ".slider input[type=range]", "\ue011")  # home
    shown(page, SLOTS[0])
    assert {norm: pixels(page, f"[data-variant='{norm}'] .segmentation") for norm in range(4)} == before


def test_another_scene_is_chosen_by_keyboard(page):
    before = pixels(page, "canvas.input"), pixels(page, "[data-variant='2'] .segmentation")
    press(page, ".scenes input", "\ue014")
    wait(page, "document.querySelector('.slider canvas.input').getAttribute('aria-label').includes('Scene 1')")
    assert pixels(page, "canvas.input") != before[0]
    assert pixels(page, "[data-variant='2'] .segmentation") != before[1]


def test_pointing_at_a_curve_reads_out_its_values(page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    plot = page.find_element(By.CSS_SELECTOR, ".all svg.plot")
    readout = plot.find_element(By.XPATH, "../p[@class='readout']")
    assert not readout.is_displayed()
    ActionChains(page).move_to_element(plot).perform()
    name = plot.get_attribute("id")
    panel = page.execute_script(f"return JSON.parse(document.getElementById('data').textContent)['{name}']")
    middle = min(range(len(panel["places"])), key=lambda place: abs(panel["places"][place] - panel["width"] / 2))
    expected = [f"{panel['name']} {panel['points'][middle]}"]
    expected += [f"{curve['label']} {curve['values'][middle]}" for curve in panel["curves"]]
    assert readout.text.splitlines() == expected
    for height in (400, 1400):  # wherever the window ends, all of it can be read, and it hides no curve
        metrics = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        page.execute_script("arguments[0].scrollIntoView({block: 'end', behavior: 'instant'})", plot)
        ActionChains(page).move_to_element_with_offset(plot, 40, 0).perform()
        box, drawn = (
            page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", e) for e in (readout, plot)
        )
        assert box["top"] >= 0
        assert box["bottom"] <= height
        inside = (drawn["top"] + 0.1 * drawn["height"], drawn["top"] + 0.85 * drawn["height"])
        assert box["bottom"] <= inside[0] or box["top"] >= inside[1]
    ActionChains(page).move_to_element(page.find_element(By.CSS_SELECTOR, "h1")).perform()
    assert not readout.is_displayed()


def test_arrow_keys_read_a_curve(page):
    press(page, ".all svg.plot", "\ue014", "\ue014")
    text = page.execute_script("return document.querySelector('.all .readout').textContent")
    assert text.startswith("slots K 3")
    press(page, ".all svg.plot", "\ue00c")  # escape
    assert page.execute_script("return document.querySelector('.all .readout').hidden")


def test_paths_are_read_at_the_nearest_place_and_by_keyboard(page):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    plot = page.find_element(By.CSS_SELECTOR, ".all svg.plot[aria-label^='F-ARI against ARI']")
    readout = plot.find_element(By.XPATH, "../p[@class='readout']")
    content = f"JSON.parse(document.getElementById('data').textContent)['{plot.get_attribute('id')}']"
    panel = page.execute_script(f"return {content}")
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    box = page.execute_script("return arguments[0].getBoundingClientRect().toJSON()", plot)
    for index in (0, len(panel["points"]) - 1):
        x, y = panel["curves"][0]["spots"][index]  # of the baseline, whose path is long
        scale = box["width"] / panel["width"]
        from_middle = round(x * scale - box["width"] / 2), round(y * scale - box["height"] / 2)
        ActionChains(page).move_to_element_with_offset(plot, *from_middle).perform()
        expected = [f"slots K {panel['points'][index]}"]
        expected += [f"{curve['label']} {curve['values'][index]}" for curve in panel["curves"]]
        assert readout.text.splitlines() == expected
    rings = page.execute_script("return arguments[0].querySelector('.cross').getAttribute('d')", plot)
    assert rings.count("M") == len(panel["curves"])
    plot.send_keys("\ue011", "\ue014")  # home, right
    assert readout.text.startswith(f"slots K {panel['points'][1]}")
    assert page.execute_script("return arguments[0].querySelector('.cross').getAttribute('d')", plot) != rings


def test_failed_runs_are_left_out_by_the_toggle(page):
    from selenium.webdriver.common.by import By

    def visible(selector: str) -> list[bool]:
        return [part.is_displayed() for part in page.find_elements(By.CSS_SELECTOR, selector)]

    assert all(visible(".all"))
    assert not any(visible(".kept"))
    press(page, "#without-failed", " ")
    assert not any(visible(".all"))
    assert all(visible(".kept"))
    assert "2 of 3 runs" in page.find_element(By.CSS_SELECTOR, "main").text


@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_screen_does_not_scroll_sideways(page, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.get(page.current_url)
    wait(page, "document.querySelector('.slider').dataset.shown")
    assert page.execute_script("return innerWidth") == width
    assert page.execute_script("return document.documentElement.scrollWidth") == width


def test_dark_mode_is_dark_and_readable(page):
    light = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert luminance(light) > 0.9
    background = luminance(page.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert background < 0.02
    for selector, least in (("body", 7), (".quiet", 4.5), ("a", 4.5), (".worse", 4.5)):
        color = page.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).color")
        assert (luminance(color) + 0.05) / (background + 0.05) >= least, selector


def luminance(color: str) -> float:
    """WCAG's relative luminance of rgb(...)."""
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_everything_to_use_can_be_reached_with_the_tab_key(page):
    from selenium.webdriver import ActionChains

    reached = set()
    for _ in range(60):
        ActionChains(page).send_keys("\ue004").perform()
        reached.add(page.execute_script(
            "const e = document.activeElement;"
            "return [e.tagName.toLowerCase(), e.type || '', getComputedStyle(e).outlineStyle !== 'none'].join(' ')"
        ))  # fmt: skip
    for wanted in ("a", "input checkbox", "svg", "input range", "input radio", "summary", "div"):
        assert any(entry.startswith(wanted) for entry in reached), (wanted, reached)
    assert all(entry.endswith("true") for entry in reached if entry.startswith(("a", "svg", "summary", "input range")))
