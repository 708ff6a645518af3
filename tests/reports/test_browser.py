"""The page as a reader uses it, in a browser without a window."""

import csv
import html
import json

import numpy as np
import pytest

import tf_pflego as pfl
from tests.reports.conftest import large_run
from tests.runs.resumed import configure
from tf_pflego import reports

pytestmark = pytest.mark.thorough
WIDTHS = (360, 1600)


@pytest.fixture(scope="module")
def pages(page_of_three, tmp_path_factory):
    """A page of three runs, and one of many clients."""
    root = tmp_path_factory.mktemp("pages")
    many = large_run(root / "many", 130)
    return {"three": page_of_three, "many": reports.write(many, root / "many.html")[0]}


@pytest.fixture
def opened(browser, pages):
    """A function that opens a page; at the end nothing was asked for and no script failed."""
    seen, opened_pages = [], []

    def open_page(name, **options):
        page = browser.new_page(**options)
        opened_pages.append(page)
        page.on("request", lambda request: seen.append(request.url))
        page.on("pageerror", lambda error: seen.append(str(error)))
        page.on("console", lambda message: seen.append(message.text))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for page in opened_pages:
        page.close()
    files = [path.as_uri() for path in pages.values()]
    assert [one for one in seen if one not in files and not one.startswith("data:")] == []


# The document's own script alone would show that the policy holds, whatever is escaped.
MARKUP = (
    """<script>window.ran = 1</script>"><img src=x onerror="window.ran = 1">&amp;'\u2028</script>"""
)
NAME = MARKUP.replace("\u2028", "")  # A name that is not printable is refused.


def hostile_run(path):
    """A run that has this markup wherever a text can be, and what is no text as it is."""
    directory = large_run(path / MARKUP.replace("/", "\\"), 4)
    texts = {f"{MARKUP}{key}": MARKUP for key in ("a", "b")}
    about = {"algorithm": MARKUP, "dataset": MARKUP, "versions": texts, "class_mask": [MARKUP]}
    configure(directory, **about, **texts, num_eval_clients=3)
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    names = {f"{MARKUP}/test_accuracy/client_mean/{MARKUP}": 0.5, MARKUP: 1.5, "text": MARKUP}
    records = [json.loads(line) | names | {"not_finite_clients": [MARKUP]} for line in lines]
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | texts))
    with open(directory / "clients.csv", newline="") as file:
        head, *rows = csv.reader(file)
    classes = head.index("classes")
    rows = [[*row[:classes], MARKUP, *row[classes + 1 :], "0.5", "0.5", MARKUP] for row in rows]
    with open(directory / "clients.csv", "w", newline="") as file:
        csv.writer(file).writerows([[*head, f"{MARKUP}/test_accuracy", MARKUP, "name"], *rows])
    with open(directory / "new_clients.csv", "w", newline="") as file:
        table = [["epoch", "client", "test_accuracy", MARKUP], [0, 4, 0.5, 1], [1, 4, 0.6, 1]]
        csv.writer(file).writerows(table)
    with np.load(directory / "partition.npz") as arrays:
        content = dict(arrays)
    content |= {"shifts": np.full(4, MARKUP), "names": np.full(4, NAME), "<b>": [1]}
    content["class_names"] = np.full(10, MARKUP)
    np.savez(directory / "partition.npz", **content)
    return directory


def test_markup_in_the_files_of_a_run_is_text(browser, tmp_path):
    """Escaped text does not rely on the policy, nor the other way round."""
    other, output = large_run(tmp_path / "plain", 4), tmp_path / "r.html"
    reports.write([hostile_run(tmp_path), other], output)
    content = output.read_text(encoding="utf-8")
    script = content.replace("</main>", "<script>window.ran = 1</script></main>")
    for written, scripts in ((content.replace("Content-Security-Policy", "no"), 2), (script, 3)):
        output.write_text(written, encoding="utf-8")
        page, errors, requests = browser.new_page(), [], []
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        page.on("request", lambda request, requests=requests: requests.append(request.url))
        page.goto(output.as_uri())
        for details in page.locator("summary").all():
            if details.is_visible():
                details.click()
        page.locator("#clients-table th button").first.click()
        assert page.evaluate("window.ran") is None
        assert (errors, requests) == ([], [output.as_uri()])
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == scripts
        shown = MARKUP.replace("\u2028", r"\u2028")
        assert shown.replace("/", "\\") in page.locator("#runs").text_content()
        for where in ("h1", "#settings", "#terms", "#clients-table"):
            assert shown in page.locator(where).text_content(), where
        assert shown[:20] in page.locator(".legend").first.text_content()
        # The script of the page has run, too.
        assert page.locator("#clients-said").text_content()
        page.close()


def column(page, number):
    return page.locator(f"#clients-table tbody tr > :nth-child({number})").all_inner_texts()


@pytest.mark.parametrize("name", ["three", "many"])
def test_nothing_is_wider_than_the_screen(opened, name):
    page = opened(name)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
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


def test_clients_are_sorted_and_filtered(opened, pages):
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
    classes = pfl.Partition.load(pages["many"].with_name("many") / "partition.npz").classes
    fitting = [str(client) for client, held in enumerate(classes) if 7 in held]
    assert sorted(column(page, 1), key=int) == fitting


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
    for selector in ("p", ".note", "a", "th button", ".chart svg text"):
        style = "e => { const s = getComputedStyle(e); return e.closest('svg') ? s.fill : s.color }"
        color = page.locator(f"{selector}:visible").first.evaluate(style)
        assert contrast(luminance(color), back) >= 4.5, selector
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
    page = browser.new_page()
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
    page.close()
