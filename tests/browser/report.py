"""The report in a real browser: it opens from disk without errors, sorts, filters, can be used from the keyboard, can be read, and its
sliders give what a replay gives.

    pip install playwright
    python tests/browser/report.py --kvlab target/release/kvlab --chromium /usr/bin/chromium --out target/browser

Everything it looks at is generated here, without a model. Screenshots are left in --out, to be looked at. Exit code 1 when a check fails.
"""

import argparse
import csv
import json
import pathlib
import random
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = (HERE / "checks.js").read_text()
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
CELLS = 10_000


class Report:
    """What was checked and what failed."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, name, holds, detail=""):
        self.passed += bool(holds)
        self.failed += not holds
        if not holds:
            print(f"FAILED {name}: {detail}")


def run(kvlab, *args):
    done = subprocess.run([kvlab, *map(str, args)], capture_output=True, text=True)
    if done.returncode not in (0, 4):
        sys.exit(f"kvlab {' '.join(map(str, args))}\n{done.stderr}")
    return done.stdout


def cells_of(kvlab, folder, *args):
    """The rows of `cells` that a command writes."""
    run(kvlab, *args, "--out", folder, "--csv")
    with open(folder / "cells.csv", newline="") as file:
        return list(csv.DictReader(file))


def results(kvlab, work):
    """Three studies: branch trees with step functions, sequences with all figures, and many cells."""
    root = HERE.parent.parent
    trees, sequences = work / "trees", work / "sequences"
    run(kvlab, "trace", "synth", "branch-trees", "--out", trees, "--layers", 12, "--set", "problems=40", "--set", "branches=5")
    run(kvlab, "trace", "synth", "--out", sequences, "--layers", 2, "--len", 160)
    folders = {name: work / f"results-{name}" for name in ("trees", "sequences", "many")}
    run(kvlab, "sweep", root / "scenarios/smoke/trees.yaml", "--trace", trees, "--out", folders["trees"])
    run(kvlab, "sweep", root / "scenarios/smoke/tiny.yaml", "--trace", sequences, "--out", folders["sequences"])
    steps = [round(0.01 * at, 2) for at in range(1, 101)]
    thresholds = ",".join(map(str, steps))
    run(kvlab, "replay", sequences, "--theta", thresholds, "--epsilon", thresholds, "--out", folders["many"])
    for folder in folders.values():
        run(kvlab, "report", folder, "--out", folder / "report.html")
    return trees, folders


def opened(browser, path, report, **options):
    """A page without network, with everything that it complains about."""
    context = browser.new_context(offline=True, **options)
    page = context.new_page()
    # A busy machine is no fault of the page.
    page.set_default_timeout(180_000)
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if not request.url.startswith(("file:", "data:")) else None)
    page.goto(path.as_uri())
    report.check(f"{path.parent.name}: no console errors, no requests", not said, said)
    page.evaluate(CHECKS)
    return page, said


def looks(browser, folders, out, report):
    """Every page at both widths and in both colour schemes: fits, reads, has text for its pictures."""
    for name, folder in folders.items():
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
                page, said = opened(browser, folder / "report.html", report, **options)
                where = f"{name}, {size}, {scheme}"
                wide = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
                report.check(f"{where}: no sideways scrolling", wide <= 0, f"{wide} pixels too wide")
                for check in ("unlabelled", "faint", "clipped"):
                    found = page.evaluate(f"kvlabChecks.{check}()")
                    report.check(f"{where}: {check}", not found, found[:5])
                page.screenshot(path=out / f"{name}-{size}-{scheme}.png", full_page=name != "many")
                report.check(f"{where}: nothing went wrong later", not said, said)
                page.context.close()


def cells(browser, folder, report):
    """Sorting, filtering and paging of many rows, with the mouse and from the keyboard."""
    page, said = opened(browser, folder / "report.html", report)
    box = page.locator("[data-cells]").first
    status = lambda: box.locator(".status").inner_text()
    report.check("all rows are there", status().endswith(f"of {CELLS:,}"), status())
    head = box.locator("th", has_text="theta").first
    column = page.evaluate("e => [...e.parentElement.children].indexOf(e)", head.element_handle())
    shown = lambda: [float(text.replace(",", "")) for text in box.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()]
    head.locator("button").click()
    report.check("sorted up", head.get_attribute("aria-sort") == "ascending" and shown() == sorted(shown()), shown()[:5])
    report.check("the smallest first", min(shown()) == 0.01, shown()[:5])
    head.locator("button").focus()
    page.keyboard.press("Enter")
    report.check("sorted down by a key", head.get_attribute("aria-sort") == "descending" and max(shown()) == 1.0, shown()[:5])
    box.locator(".pages button", has_text="Next").click()
    report.check("the next page", status().startswith("Rows 51 to 100"), status())
    box.locator("input").fill("0.37 0.37")
    page.wait_for_function("box => !box.querySelector('.status').textContent.includes('10,000')", arg=box.element_handle())
    kept = box.locator("tbody tr").all_inner_texts()
    report.check("filtered", kept and all("0.37" in row for row in kept), kept[:3])
    box.locator("input").fill("no such word")
    page.wait_for_function("box => box.querySelector('.status').textContent.startsWith('No row')", arg=box.element_handle())
    report.check("sorting and filtering say nothing", not said, said)
    slowest = page.evaluate("kvlabChecks.slowest()")
    print(f"{CELLS} cells: the slowest of filtering and sorting took {slowest:.0f} ms in the page")
    page.context.close()


def keyboard(browser, folder, report):
    """Everything that a mouse can do has a place in the order of the Tab key, and shows where it is."""
    page, _ = opened(browser, folder / "report.html", report)
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.textContent")
    report.check("the first stop skips to the answer", first == "Skip to the answer", first)
    page.keyboard.press("Enter")
    report.check("and does", page.url.endswith("#answer"), page.url)
    reached, hidden = set(), []
    for _ in range(400):
        page.keyboard.press("Tab")
        stop = page.evaluate("kvlabChecks.focused()")
        if stop is None or stop["name"] in reached:
            break
        reached.add(stop["name"])
        if not stop["outlined"]:
            hidden.append(stop["name"])
    report.check("focus can be seen", not hidden, hidden[:5])
    missed = page.evaluate("names => kvlabChecks.interactive().filter(name => !names.includes(name))", list(reached))
    report.check("everything is reached", not missed, missed[:5])
    slider = page.locator("#slider-theta")
    slider.focus()
    before = page.locator("[data-axis=theta] input[type=number]").input_value()
    page.keyboard.press("ArrowRight")
    after = page.locator("[data-axis=theta] input[type=number]").input_value()
    report.check("arrow keys move a slider", float(after) > float(before), (before, after))
    page.context.close()


def settings(page, draws):
    """A dozen positions: at recorded values, where a comparison decides, and anywhere between."""
    seen = page.evaluate("kvlabChecks.observed()")
    for at in range(12):
        chosen = {}
        for axis, values in seen.items():
            one, other = draws.choice(values), draws.choice(values)
            chosen[axis] = one if at % 3 else round((one + other) / 2, 4)
        yield chosen


def sliders(browser, kvlab, trees, folder, work, report):
    """Sliders against `kvlab replay` at the same thresholds, and the copied stack against `kvlab sweep`."""
    page, said = opened(browser, folder / "report.html", report)
    page.select_option("#slider-stack", label="rksc")
    draws = random.Random(9)
    stacks, read = [], []
    for at, chosen in enumerate(settings(page, draws)):
        for axis, value in chosen.items():
            page.locator(f"[data-axis={axis}] input[type=number]").fill(repr(value))
        page.evaluate("new Promise(requestAnimationFrame)")
        page.evaluate("new Promise(requestAnimationFrame)")
        read.append(page.evaluate("kvlabChecks.outcome()"))
        stacks.append(page.locator(".sliders pre").inner_text().replace('label: "rksc"', f"label: s{at}"))
        flags = [text for axis, value in chosen.items() for text in (f"--{axis.replace('_', '-')}", repr(value))]
        parts = ("--share", "asks", "--verify", "cgee", "--exit", "entropy")
        cell = cells_of(kvlab, work / "replayed", "replay", trees, *parts, *flags)[-1]
        compare(f"replay at {chosen}", read[-1], cell, report)
    scenario = work / "copied.yaml"
    indented = "\n".join(f"    {line}" for stack in stacks for line in stack.strip().splitlines())
    scenario.write_text(f"id: copied\nwhy: What do the copied stacks give?\ntrees:\n  stacks:\n{indented}\n")
    swept = cells_of(kvlab, work / "swept", "sweep", scenario, "--trace", trees)
    report.check("every copied stack is a cell", len(swept) == len(read), len(swept))
    for outcome, cell in zip(read, swept):
        compare(f"sweep of {cell['policy']}", outcome, cell, report)
    distinct = {json.dumps(outcome, sort_keys=True) for outcome in read}
    report.check("the positions differ", len(distinct) >= 8, len(distinct))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".sliders button", has_text="Copy").click()
    page.wait_for_function("[...document.querySelectorAll('.sliders .status')].some(e => e.textContent === 'Copied.')")
    report.check("the button copies", page.evaluate("navigator.clipboard.readText()") == page.locator(".sliders pre").inner_text())
    page.locator(".sliders button", has_text="Back").click()
    report.check("sliders say nothing", not said, said)
    page.context.close()


def compare(name, outcome, cell, report):
    """Counts, and the value to the last digit shown."""
    for metric, (value, fraction) in outcome.items():
        if metric == "layers_run":
            continue
        num, den = int(cell[f"{metric}_num"]), int(cell[f"{metric}_den"])
        expected = f"{num / den:.4f}" if den else "–"
        report.check(f"{name}: {metric}", fraction == f"{num:,} / {den:,}" and value == expected, (value, fraction, expected, num, den))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvlab", default="target/release/kvlab")
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None))
    parser.add_argument("--only", choices=("looks", "cells", "keyboard", "sliders"), help="one part of the checks")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("target/browser"))
    args = parser.parse_args()
    if args.chromium is None:
        sys.exit("no Chromium found; name one with --chromium")
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    out = args.out.resolve()
    report = Report()
    trees, folders = results(args.kvlab, out)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        parts = {
            "looks": lambda: looks(browser, folders, out, report),
            "cells": lambda: cells(browser, folders["many"], report),
            "keyboard": lambda: keyboard(browser, folders["trees"], report),
            "sliders": lambda: sliders(browser, args.kvlab, trees, folders["trees"], out, report),
        }
        for name, part in parts.items():
            if args.only in (None, name):
                part()
        browser.close()
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(report.failed > 0)


if __name__ == "__main__":
    main()
