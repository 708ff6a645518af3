"""The page as a reader uses it, in a browser without a window."""

import html
import shutil

import pytest

from tests.reports.conftest import large_run
from tf_pflego import reports

pytestmark = pytest.mark.same_on_both_lines


sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WIDTHS = (360, 800, 1600)


@pytest.fixture(scope="module")
def browser():
    """The distribution's Chromium, or the one that playwright installed."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found)
        except sync_api.Error as error:
            if found is None:
                pytest.skip(f"no browser is installed; looked for {', '.join(BROWSERS)}")
            raise AssertionError(f"{found} does not start") from error
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(runs, tmp_path_factory):
    """A page of three runs, and one of many clients."""
    root = tmp_path_factory.mktemp("pages")
    many = large_run(root / "many", 130)
    return {
        "three": reports.write(list(runs.values()), root / "three.html")[0],
        "many": reports.write(many, root / "many.html")[0],
    }


@pytest.fixture
def opened(browser, pages):
    """A function that opens a page; at the end nothing was asked for and no script failed."""
    seen, contexts = [], []

    def open_page(name, **options):
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.append(request.url))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("console", lambda message: seen.append(message.text))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    files = [path.as_uri() for path in pages.values()]
    assert [one for one in seen if one not in files and not one.startswith("data:")] == []


def column(page, number):
    return page.locator(f"#clients-table tbody tr > :nth-child({number})").all_inner_texts()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["three", "many"])
def test_nothing_is_wider_than_the_screen(opened, name, width):
    page = opened(name, viewport={"width": width, "height": 800})
    for details in page.locator("summary").all():
        if details.is_visible():
            details.click()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = page.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => e.getClientRects().length"
        " && !e.closest('.scroll, svg') && e.getBoundingClientRect().right > innerWidth)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert page.locator("figure .narrow svg:visible").count() == (
        page.locator("figure:visible").count() if width == 360 else 0
    )


def test_one_figure_at_a_time_by_metric_and_axis(opened):
    page = opened("three")
    shown = page.locator(".chart:visible")
    assert shown.count() == 1
    assert shown.locator("figcaption").inner_text().startswith("Test accuracy of all clients")
    page.get_by_role("radio", name="seconds of training").check()
    assert shown.get_attribute("data-axis") == "seconds"
    page.locator("#metric").select_option(label="training loss of all clients")
    assert shown.count() == 1
    assert shown.locator("figcaption").inner_text().startswith("Training loss of all clients")
    assert "training loss" in shown.locator("svg[role=img]:visible").text_content()


def test_clients_are_sorted_and_filtered(opened):
    page = opened("many")
    assert column(page, 1) == [str(k) for k in range(50)]
    page.get_by_role("button", name="Next 50").click()
    page.get_by_role("button", name="Next 50").click()
    assert column(page, 1) == [str(k) for k in range(100, 130)]
    assert page.get_by_role("button", name="Next 50").is_disabled()
    head = page.get_by_role("button", name="fedavg: accuracy, %")
    head.click()
    values = [float(text) for text in column(page, 5)]
    assert values == sorted(values) and values[0] == 0
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("fedavg")
    head.click()
    values = [float(text) for text in column(page, 5)]
    assert values == sorted(values, reverse=True) and values[0] == 100
    page.get_by_label("at least").fill("126")
    assert column(page, 1) == [] or page.locator("#filter-column").input_value() == "0"
    assert sorted(column(page, 1), key=int) == ["126", "127", "128", "129"]
    assert page.locator("#clients-said").inner_text() == "4 of 130 clients fit."
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Holds class").fill("7")
    assert all(holds(text, 7) for text in column(page, 4)) and column(page, 4)


def holds(text, wanted):
    for part in text.split():
        low, _, high = part.partition("–")
        if int(low) <= wanted <= int(high or low):
            return True
    return False


def test_another_target_can_be_typed(opened):
    page = opened("three")
    rows = page.locator("#target-table tbody tr")
    page.get_by_label("Target, percent").fill("0")
    assert [row.locator("td").first.inner_text() for row in rows.all()] == ["1", "1", "1"]
    page.get_by_label("Target, percent").fill("100")
    assert "not reached" in rows.first.inner_text()
    page.get_by_label("Target, percent").fill("101")
    assert "must be a number from 0 to 100" in page.locator("#target-said").inner_text()


def test_the_keyboard_alone_is_enough(opened):
    page = opened("many", viewport={"width": 800, "height": 600})
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        focus = "document.activeElement"
        outline = page.evaluate(f"getComputedStyle({focus}).outlineStyle")
        name = page.evaluate(f"{focus}.id || {focus}.name || {focus}.textContent")
        assert outline == "solid" or name == page.evaluate("document.body.textContent"), name
        reached.add(name)
    assert {"metric", "axis", "target-value", "filter-class", "filter-low", "turn-on"} <= reached


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_read_well_on_light_and_on_dark(opened, scheme):
    page = opened("three", color_scheme=scheme)
    back = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (back > 0.5) == (scheme == "light")
    for selector, wanted in (
        ("p", 4.5),
        (".note", 4.5),
        ("a", 4.5),
        ("th button", 4.5),
        (".chart svg text", 4.5),
    ):
        style = "e => { const s = getComputedStyle(e); return e.closest('svg') ? s.fill : s.color }"
        color = page.locator(f"{selector}:visible").first.evaluate(style)
        assert contrast(luminance(color), back) >= wanted, selector
    for number in range(7):
        color = page.evaluate(
            "k => { const e = document.createElement('i'); e.style.color = `var(--s${k})`;"
            " document.body.append(e); return getComputedStyle(e).color }",
            number,
        )
        assert contrast(luminance(color), back) >= 3, f"--s{number}"


def luminance(color):
    """The relative luminance of rgb(r, g, b), as WCAG 2 defines it."""
    channels = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    return (max(first, second) + 0.05) / (min(first, second) + 0.05)


def test_its_links_lead_to_its_sections_also_inside_a_notebook(browser, pages):
    source = html.escape(pages["three"].read_text(encoding="utf-8"))
    context = browser.new_context()
    page = context.new_page()
    page.set_content(f'<iframe srcdoc="{source}" style="width: 100%; height: 400px"></iframe>')
    frame = page.frame_locator("iframe")
    links = frame.locator("nav a")
    for number in range(links.count()):
        target = links.nth(number).get_attribute("href")
        links.nth(number).click()
        top = frame.locator(target).evaluate("section => section.getBoundingClientRect().top")
        bottom = frame.locator("body").evaluate(
            "body => document.documentElement.scrollHeight - innerHeight - scrollY"
        )
        assert abs(top) < 50 or bottom < 1, target
    context.close()
