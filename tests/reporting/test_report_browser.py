"""The page of a report in a real browser: it loads alone, sorts by keys, says what it shows, and can be read in any light."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from publisher.reporting.html.values import number_text
from tests.reporting.report_numbers import page_tables
from tests.reporting.test_report import EVIL, JOBS, WINDOW, write
from tests.support.pki import PKI
from tests.support.sites import ConfiguredSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.slow  # a browser and its pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Where to leave pictures for people to look at.
SCREENSHOTS = os.environ.get("PUBLISHER_SCREENSHOTS")

# Of every text on the page: its colour against the colour behind it, by the formula of WCAG 2.1.
CONTRASTS = """() => {
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a] = numbers(getComputedStyle(at).backgroundColor);
      if (a !== 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || element.closest("script, title, desc, style")) continue;
    const style = getComputedStyle(element);
    const ink = light(numbers(element instanceof SVGElement ? style.fill : style.color).slice(0, 3));
    const paper = light(behind(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    found.push([ratio, walk.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
}"""
# The same of what is drawn in the plots.
BARS = """() => {
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number).slice(0, 3);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(numbers(getComputedStyle(document.body).backgroundColor));
  const found = {};
  for (const path of document.querySelectorAll("svg rect[class^='s']")) {
    const fill = getComputedStyle(path).fill, ink = light(numbers(fill));
    found[fill] = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }
  return found;
}"""


# How many lines the text of each of these elements takes.
LINES = """(which) => [...document.querySelectorAll(which)].map((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  return new Set([...range.getClientRects()].map((line) => line.top)).size;
})"""
# The labels of plots that are partly outside of them.
CLIPPED = """() => [...document.querySelectorAll("svg text")].filter((text) => {
  const [of, whole] = [text, text.ownerSVGElement].map((one) => one.getBoundingClientRect());
  return of.left < whole.left - 1 || of.right > whole.right + 1 || of.top < whole.top - 1 || of.bottom > whole.bottom + 1;
}).map((text) => text.textContent)"""
# The light of each colour of the bars, plus 0.05 as in the formula of contrasts.
PALETTE = """() => [0, 1, 2, 3, 4, 5, 6].map((number) => {
  const bar = document.createElement("span");
  bar.className = `b${number}`;
  document.body.append(bar);
  const [r, g, b] = getComputedStyle(bar).backgroundColor.match(/[0-9.]+/g).map(Number).map(
    (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
})"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of some hundred jobs, delivered, some with hostile names."""
    folder = tmp_path_factory.mktemp("browser")
    pki = PKI.create(folder / "pki")
    targets = {
        "files": {"type": "spool", "path": str(folder / "out"), "format": "car", "start": "all"},
        "months": {"type": "spool", "path": str(folder / "sums"), "format": "apel-summary-0.4", "start": "all"},
    }
    site = ConfiguredSite(folder, pki, pki.host(), targets)
    site.config["records"]["charges"] = [{"formula": "RunTime * NumCPUs", "unit": "core hour"}]
    site.config["records"]["power"] = {"watts_per_core": 5, "grams_per_kwh": 28}
    granted = {"project": EVIL[0], "valid_from": "2026-10", "valid_to": "2026-12", "gpu_hours": 9}
    site.config["records"]["allocations"] = [granted]
    evil = [
        replace(job, vo=name, fqans=(), queue=name, projects=(name,), job_id=f"evil{at}", local_job_id=f"e{at}")
        for at, (job, name) in enumerate(zip(JOBS, EVIL, strict=False))
    ]
    write(site, [*JOBS[20:220], *evil])
    site.run("publish", "--force")
    assert site.run("charge", *WINDOW).status == 0
    path = folder / "report.html"
    assert site.run("report", "-o", str(path), "--from", "2026-10", "--to", "today", "--name-users").status == 0
    (folder / "statement.html").write_text(site.run("statement", "2026-10", "--format", "html").out)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as playwright:
        # As root, as in containers, Chromium has no sandbox; the page is our own.
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield launched
        launched.close()


class Opened:
    """The page in the browser, without a network, and everything that it complained of or asked for."""

    def __init__(self, browser: Browser, path: Path, **how: Any) -> None:
        self.context = browser.new_context(offline=True, **how)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.load(path)

    def load(self, path: Path) -> None:
        """Anew, as if nobody had looked at it before."""
        self.page.emulate_media(media="null", color_scheme="null")
        self.page.goto("about:blank")
        self.complaints.clear()
        self.requests.clear()
        self.page.mouse.move(0, 0)
        self.page.goto(path.as_uri())
        self.asked_for = [url for url in self.requests if url != path.as_uri()]


@pytest.fixture(scope="module")
def desktop(browser: Browser, page_file: Path) -> Iterator[Opened]:
    """One window for most tests: the browser starts a process for each."""
    one = Opened(browser, page_file, viewport={"width": 1280, "height": 900})
    yield one
    one.context.close()


@pytest.fixture
def opened(desktop: Opened, page_file: Path) -> Opened:
    desktop.load(page_file)
    return desktop


def column(page: Page, table: str, at: int) -> list[str]:
    return [cells[at] for cells in texts(page.get_by_role("table", name=table, exact=True))]


def texts(table: Locator) -> list[list[str]]:
    """Of every row, asked for at once: each question is a way to the browser and back."""
    found: list[list[str]] = table.locator("tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return found


def test_it_loads_without_a_complaint_and_asks_for_nothing(opened: Opened, page_file: Path) -> None:
    assert opened.page.title().startswith("Accounting report: EXAMPLE-SITE")
    assert opened.page.locator("svg").count() == 14
    assert opened.page.locator("script").count() == 2
    assert opened.complaints == []
    assert opened.asked_for == []


def test_keys_sort_a_table(opened: Opened, page_file: Path) -> None:
    page = opened.page
    table = page.get_by_role("table", name="By queue", exact=True)
    jobs = table.get_by_role("button", name="Jobs", exact=True)
    expected = sorted((int(row["Jobs"]) for row in page_tables(page_file.read_text())["By queue"][:-1]), reverse=True)
    jobs.focus()
    assert page.evaluate("document.activeElement.textContent") == "Jobs"
    page.keyboard.press("Enter")
    assert [int(cell.replace(",", "")) for cell in column(page, "By queue", 1)] == expected
    assert jobs.locator("xpath=..").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Space")
    assert [int(cell.replace(",", "")) for cell in column(page, "By queue", 1)] == expected[::-1]
    assert jobs.locator("xpath=..").get_attribute("aria-sort") == "ascending"
    assert page.get_by_role("status").inner_text() == "By queue: sorted by Jobs, ascending"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    names = column(page, "By queue", 0)
    assert names == page.evaluate("(names) => names.sort(new Intl.Collator(undefined, {numeric: true}).compare)", names)
    assert table.locator("th[aria-sort]").count() == 1
    assert opened.complaints == []


def test_what_is_not_known_is_sorted_to_the_end(opened: Opened) -> None:
    page = opened.page
    table = page.get_by_role("table", name="By queue", exact=True)
    head = table.get_by_role("button", name="Si2k hours")
    for _ in range(2):
        head.click()
        heads = table.get_by_role("columnheader").all_inner_texts()
        cells = column(page, "By queue", heads.index("Si2k hours"))
        assert "–" in cells
        known = [cell for cell in cells if cell != "–"]
        assert cells == known + ["–"] * (len(cells) - len(known))


def test_the_whole_page_can_be_reached_by_tab(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    assert {"DIV", "BUTTON", "A"} <= seen


def test_screen_readers_find_their_way(opened: Opened) -> None:
    page = opened.page
    heads: list[str] = page.locator("h1, h2, h3, h4").evaluate_all("(heads) => heads.map((head) => head.tagName[1])")
    levels = [int(level) for level in heads]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("main").count() == page.get_by_role("navigation").count() == 1
    pictures = page.get_by_role("img")
    assert pictures.count() == page.locator("svg").count()
    names: list[list[str]] = pictures.evaluate_all(
        "(pictures) => pictures.map((svg) => svg.getAttribute('aria-labelledby').split(' ')"
        ".map((id) => document.getElementById(id).textContent))"
    )
    assert all(len(text) > 5 for named in names for text in named), names
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    tables = page.get_by_role("table")
    assert all(tables.evaluate_all("(tables) => tables.map((table) => table.caption.textContent)"))
    for table in tables.all():
        assert table.get_by_role("columnheader").count() == table.locator("thead th[scope=col]").count() > 0
        assert table.get_by_role("rowheader").count() >= table.locator("tbody tr").count()
    assert all(page.locator(".scroll").evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))"))
    links = page.locator("nav a").evaluate_all("(links) => links.map((link) => link.getAttribute('href'))")
    for link in links:
        assert page.locator(str(link)).count() == 1


@pytest.mark.parametrize("light", ["light", "dark"])
def test_text_and_plots_stand_out(opened: Opened, light: Any) -> None:
    """4.5 to 1 for text, 3 to 1 for what is drawn (WCAG 2.1, 1.4.3 and 1.4.11)."""
    opened.page.emulate_media(color_scheme=light)
    contrasts = opened.page.evaluate(CONTRASTS)
    assert len(contrasts) > 500
    assert [one for one in contrasts if one[0] < 4.5] == []
    bars = opened.page.evaluate(BARS)
    assert len(bars) >= 5
    assert {fill: ratio for fill, ratio in bars.items() if ratio < 3} == {}
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (light == "light")


def test_a_small_screen_scrolls_down_only(browser: Browser, page_file: Path) -> None:
    opened = Opened(browser, page_file, viewport={"width": 360, "height": 740}, device_scale_factor=2)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 360
    sizes = opened.page.evaluate(
        "[...document.querySelectorAll('svg text')].map((text) => text.getBoundingClientRect().height)"
    )
    assert min(sizes) > 7
    opened.context.close()


def test_a_statement_fits_a_small_screen_with_its_verdicts_first(browser: Browser, page_file: Path) -> None:
    opened = Opened(browser, page_file.with_name("statement.html"), viewport={"width": 390, "height": 844})
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert [head.inner_text() for head in page.locator("h2").all()] == [
        "Target files (car): complete",
        "Target months (apel-summary-0.4): complete",
    ]
    assert max(page.evaluate(LINES, "td:not(:first-child)")) == 1, "no number is broken"
    assert (opened.complaints, opened.asked_for) == ([], [])
    opened.context.close()


@pytest.mark.parametrize("width", [360, 1280, 1400, 1920])
def test_no_first_number_is_broken(browser: Browser, page_file: Path, width: int) -> None:
    opened = Opened(browser, page_file, viewport={"width": width, "height": 900})
    opened.page.locator("dd.figure").first.evaluate("(figure) => { figure.textContent = '11,333,698,123'; }")
    assert max(opened.page.evaluate(LINES, "dd.figure")) == 1
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    opened.context.close()


def test_tables_of_usage_fit_a_usual_screen(browser: Browser, tmp_path: Path, pki: PKI) -> None:
    """With three benchmarks, and without power, charges and allocations."""
    files = {"type": "spool", "path": str(tmp_path / "out"), "format": "car", "start": "all"}
    site = ConfiguredSite(tmp_path, pki, pki.host(), {"files": files})
    write(site, JOBS[:400])
    assert site.run("report", "-o", str(tmp_path / "page.html"), *WINDOW).status == 0
    opened = Opened(browser, tmp_path / "page.html", viewport={"width": 1400, "height": 900})
    assert opened.page.locator("th", has_text="Si2k days").count() > 0
    wide = """[...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1)
        .map((one) => one.closest("section").querySelector("h2").textContent)"""
    assert opened.page.evaluate(wide) == []
    opened.context.close()


@pytest.mark.parametrize("width", [360, 390, 1400])
def test_no_number_is_parted_from_its_unit(browser: Browser, page_file: Path, width: int) -> None:
    """Nor a date at its hyphens; and no label of a plot is clipped."""
    opened = Opened(browser, page_file, viewport={"width": width, "height": 900})
    numbers = opened.page.locator(".answer .whole, .findings .whole, figure p .whole").all_inner_texts()
    assert [one for one in numbers if one.endswith(" %")]
    assert max(opened.page.evaluate(LINES, ".whole")) == 1
    assert opened.page.evaluate(CLIPPED) == []
    opened.context.close()


def test_paper_has_two_sheets_and_all_only_if_asked(opened: Opened, tmp_path: Path) -> None:
    page = opened.page

    def sheets() -> int:
        return page.pdf(prefer_css_page_size=True, print_background=True).count(b"/Type /Page\n")

    assert sheets() == 2
    page.check("#with-appendix")
    assert sheets() > 4


def test_paper_says_which_rows_it_leaves_out(opened: Opened) -> None:
    page = opened.page
    page.check("#with-appendix")
    page.emulate_media(media="print")
    for name, shown, note in (
        ("Failed jobs by reason", 6, "The first 6 rows"),
        ("Definitions", 40, "The first 40 rows"),
    ):
        body = page.get_by_role("table", name=name, exact=True, include_hidden=True).locator("tbody")
        body.evaluate("(body) => { while (body.rows.length < 8) body.append(body.rows[0].cloneNode(true)); }")
        rows = body.locator("tr")
        below = rows.first.evaluate(
            "(row) => getComputedStyle(row.closest('.scroll').nextElementSibling, '::before').content"
        )
        hidden = rows.count() - rows.locator("visible=true").count()
        assert hidden == rows.count() - shown > 0, name
        assert note in below, name


def test_a_finger_gets_the_values_too(browser: Browser, page_file: Path) -> None:
    opened = Opened(browser, page_file, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    opened.page.locator("#chart .area").nth(6).tap()
    assert opened.page.locator("#reading").inner_text().startswith("2026-10-07: ")
    assert opened.complaints == []
    opened.context.close()


def test_arrow_keys_get_the_values_too(opened: Opened) -> None:
    page = opened.page
    page.locator("#chart").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    read = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        read.append(page.locator("#reading").inner_text().partition(":")[0])
    assert read == ["2026-10-01", "2026-10-02", "2026-10-01", "2026-10-01", "2026-10-16", "2026-10-16", "2026-10-01"]
    assert page.locator("#chart .area.held").count() == 1


def test_print_is_dark_on_white_and_shows_all_rows(opened: Opened, tmp_path: Path) -> None:
    page = opened.page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert [one for one in page.evaluate(CONTRASTS) if one[0] < 4.5] == []
    hidden = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollHeight > one.clientHeight + 2).length"
    assert page.evaluate(hidden) == 0
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes()[:5] == b"%PDF-"


def test_the_files_can_be_saved(opened: Opened, tmp_path: Path) -> None:
    with opened.page.expect_download() as saving:
        opened.page.get_by_role("link", name="Download vos.csv").click()
    assert saving.value.suggested_filename == "vos.csv"
    saving.value.save_as(tmp_path / "vos.csv")
    assert (tmp_path / "vos.csv").read_text(encoding="utf-8").startswith("vo,jobs,failed,")
    assert opened.complaints == []


def explored(page: Page) -> dict[str, tuple[str, str, str]]:
    """The rows of what is chosen: amount, share, and jobs, by name."""
    cells = texts(page.get_by_role("table", name="Chosen"))
    return {name: (amount, share, jobs) for name, amount, share, jobs, _ in cells}


def test_what_is_chosen_has_the_sums_of_the_tables(opened: Opened, page_file: Path) -> None:
    page, told = opened.page, page_tables(page_file.read_text())
    for by, table, head in (("vo", "By VO", "VO"), ("queue", "By queue", "Queue"), ("user", "By user", "User")):
        page.select_option("[name=by]", by)
        found = explored(page)
        rows = told[table][:-1]
        assert {name: jobs for name, (_, _, jobs) in found.items()} == {row[head]: row["Jobs"] for row in rows}
        hours = {row[head]: number_text(int(row["Core hours"]) / 3600) for row in rows}
        assert {name: amount for name, (amount, _, _) in found.items()} == hours
    assert page.inner_text("#reading").endswith(" core hours in all.")
    page.select_option("[name=measure]", label="HEPscore23 days")
    assert page.inner_text("#reading").endswith(" HEPscore23 days in all.")
    page.select_option("[name=by]", "vo")
    scaled = {row["VO"]: row["HEPscore23 days"] for row in told["By VO"][:-1]}
    expected = {name: number_text(int(value or 0) / 86_400_000) for name, value in scaled.items()}
    assert {name: amount for name, (amount, _, _) in explored(page).items()} == expected


def test_filters_leave_the_rest_out(opened: Opened, page_file: Path) -> None:
    page = opened.page
    page.select_option("[name=vo]", label="atlas")
    whole = page_tables(page_file.read_text())["By VO"]
    atlas = next(row for row in whole if row["VO"] == "atlas")
    assert list(explored(page)) == ["atlas"]
    page.select_option("[name=by]", "project")
    assert sum(int(jobs.replace(",", "")) for _, _, jobs in explored(page).values()) == int(atlas["Jobs"])
    page.get_by_role("button", name="All of it").click()
    expected = sum(int(row["Jobs"]) for row in whole[:-1])
    page.wait_for_function(
        "(jobs) => [...document.querySelectorAll('#chosen tr')].reduce((sum, row) => "
        "sum + Number(row.cells[3].dataset.value), 0) === jobs",
        arg=expected,
    )


def test_the_period_is_chosen_by_date_and_by_dragging(opened: Opened, page_file: Path) -> None:
    page = opened.page
    days = page_tables(page_file.read_text())["By day"][:-1]
    page.fill("[name=from]", "2026-10-05")
    page.fill("[name=to]", "2026-10-14")

    def jobs() -> int:
        return sum(int(jobs.replace(",", "")) for _, _, jobs in explored(page).values())

    assert jobs() == sum(int(row["Jobs"]) for row in days if "2026-10-05" <= row["Day"] <= "2026-10-14")
    areas = page.locator("#chart .area")
    assert areas.count() == 10
    page.locator("#chart").scroll_into_view_if_needed()
    areas.nth(2).hover()
    assert str(page.locator("#reading").inner_text()).startswith("2026-10-07: ")
    page.mouse.down()
    areas.nth(4).hover()
    page.mouse.up()
    assert [page.input_value(f"[name={end}]") for end in ("from", "to")] == ["2026-10-07", "2026-10-09"]
    assert areas.count() == 3
    assert jobs() == sum(int(row["Jobs"]) for row in days if "2026-10-07" <= row["Day"] <= "2026-10-09")
    assert opened.complaints == []


def test_without_a_script_the_page_is_whole_but_for_the_choice(browser: Browser, page_file: Path) -> None:
    opened = Opened(browser, page_file, java_script_enabled=False)
    assert not opened.page.locator("#explore-section").is_visible()
    assert not opened.page.locator("#explore-link").is_visible()
    charts = opened.page.locator("figure svg:not(#chart)")
    assert charts.count() == 13
    assert all(chart.is_visible() for chart in charts.all())
    assert opened.page.get_by_role("table", name="By VO", exact=True).is_visible()
    opened.context.close()


def test_every_bar_tells_its_value(opened: Opened) -> None:
    bars = opened.page.locator("figure svg:not(#chart) rect:not(:empty)")
    assert bars.count() > 50
    said = bars.evaluate_all("(bars) => bars.map((bar) => bar.querySelector('title').textContent)")
    assert all(": " in text for text in said)
    assert all(chart.locator("text.axis").count() for chart in opened.page.locator("figure svg").all())


def test_colours_differ_in_lightness_too(opened: Opened, page_file: Path) -> None:
    """So that they can be told apart in grey."""
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        opened.load(page_file)
        opened.page.emulate_media(color_scheme=scheme)
        ratios = sorted(opened.page.evaluate(PALETTE))
        assert len(ratios) == 7
        assert min(after / before for before, after in pairwise(ratios)) > 1.1


@pytest.mark.skipif(not SCREENSHOTS, reason="PUBLISHER_SCREENSHOTS names no directory for pictures")
@pytest.mark.parametrize(
    ("name", "how", "media"),
    [
        ("light", {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}}, "screen"),
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}}, "screen"),
        ("small", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}, "screen"),
        ("print", {"viewport": {"width": 794, "height": 1123}}, "print"),
    ],
)
def test_pictures_for_people(browser: Browser, page_file: Path, name: str, how: Any, media: Any) -> None:
    opened = Opened(browser, page_file, **how)
    opened.page.emulate_media(media=media)
    path = Path(str(SCREENSHOTS)) / f"report-{name}.png"
    opened.page.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 10_000
    opened.context.close()
