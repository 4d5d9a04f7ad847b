"""The page of a run: what it says, that no text of a report gets out of its place, and that it works in a browser."""

from __future__ import annotations

import json
import random
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

import reports
from browser import chromium

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

EN_DASH = "\N{EN DASH}"
HOSTILE = [
    "</script><img src=x onerror=\"document.title='taken'\">",
    "\"' onfocus=document.title='taken' autofocus x='",
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "\u2028\u2029\x00\u202e",
    "\ud800",
    "__proto__",
]


def gate(**told: Any) -> dict[str, Any]:
    """A gate that passed, but for what is told."""
    return {
        "gate": 0,
        "expectation": "expect_column_values_to_be_between",
        "kwargs": {"column": "amount", "min_value": 0, "strict_min": True},
        "on_failure": "quarantine",
        "outcome": "passed",
        "checked": 40,
        "failing": 0,
        "observed": 0,
        "detail": "",
        "trend": [0, None, 0],
        **told,
    }


FAILED = gate(
    gate=1,
    outcome="failed",
    failing=2,
    observed=2,
    detail="2 of 40 rows fail, for example -3.00, -2.50",
    trend=[0, 1, None, 2],
    rows="hindcast failing restaurant 3 bills 1",
)


def made(*gates: dict[str, Any], **told: Any) -> dict[str, Any]:
    """The report of a run of the restaurant with these gates of its bills."""
    menu = {
        "topic": "restaurant.menu",
        "offsets": 12,
        "late": 2,
        "decidedAnew": {"accepted": 3, "expired": 0},
        "partitions": [
            {"partition": 0, "start": 100, "end": 112, "fates": {"accepted": 10, "expired": 2}},
            {"partition": 1, "start": 7, "end": 7, "fates": {}},
        ],
    }
    orders = {
        "topic": "orders",
        "offsets": 40,
        "late": 0,
        "withoutValue": 1,
        "partitions": [{"partition": 0, "start": 0, "end": 40, "fates": {"accepted": 40}}],
    }
    ages = {"under an hour": 3, "under a day": 1, "under a week": 0, "under 30 days": 0, "older": 1}
    bills = {"opened": 45, "closed": 5, "corrected": 5, "ages": ages, "gates": list(gates)}
    return {
        "pipeline": "restaurant",
        "run": 3,
        "runId": "scheduled__2026-01-01T00:00:00+00:00",
        "knownAt": "2026-01-01T01:00:02.539498+00:00",
        "intervalEnd": "2026-01-01T01:00:00+00:00",
        "state": "completed",
        "topics": {"menu": menu, "orders": orders},
        "tables": {"menu": {"opened": 0, "closed": 0, "corrected": 0, "gates": []}, "bills": bills},
        "again": "hindcast run restaurant",
        **told,
    }


def held_back(newly: int = 1, **bills: Any) -> dict[str, Any]:
    """A run whose gate holds back two keys, some of them `newly`; `bills`: other fields of their table."""
    told = made(gate(), FAILED, gate(gate=2, on_failure="stop"))
    told["tables"]["bills"] |= {"held": {"keys": 2, "rows": 3, "newly": newly, "grown": 0}, **bills}
    if bills.get("opened") == 0:
        told["tables"] = {"bills": told["tables"]["bills"]}
    return told


def stopped() -> dict[str, Any]:
    """A run that a gate stopped before the views below could be built."""
    found = "restaurant.bills: 1 of 2 gates stopped it; nothing of it was published.\n  what to do: fix the records"
    told = made(gate(), {**FAILED, "on_failure": "stop"}, state="stopped", found=found)
    told["tables"]["bills"] |= {"opened": 0, "closed": 0, "corrected": 0}
    del told["tables"]["menu"], told["tables"]["bills"]["ages"]
    return told


def many(n: int = 5000) -> dict[str, Any]:
    """A run with as many gates, 50 of each table, one in ten failed; all details and trends differ."""
    chance = random.Random(1)  # noqa: S311  # data, not secrets
    told = made()
    expectations = [
        "expect_column_values_to_be_between",
        "expect_column_values_to_not_be_null",
        "expect_column_mean_to_be_between",
        "expect_table_row_count_to_be_between",
    ]
    for number in range(n):
        table, place = f"table_{number // 50:03}", number % 50
        size = 10 ** chance.uniform(1, 6)
        share, count, any_ = (
            [round(chance.uniform(0.9, 1), 4) for _ in range(20)],
            [int(size * chance.uniform(0.97, 1.03)) for _ in range(20)],
            [chance.uniform(0, size) for _ in range(20)],
        )
        trend: list[float | None] = [*(any_ if number % 10 == 0 else share if number % 2 else count)]
        trend[chance.randrange(19)] = None
        failed, checked = chance.random() < 0.1, int(size) + 1
        failing = chance.randrange(checked) if failed else 0
        column = f"{chance.choice(('amount', 'price', 'delay', 'temp'))}_{chance.randrange(60)}"
        seen = ", ".join(f"{chance.uniform(-9, 9):.2f}" for _ in range(3))
        result = gate(
            gate=place,
            expectation=chance.choice(expectations),
            kwargs={"column": column, "min_value": chance.randrange(100), "max_value": chance.randrange(100, 10**4)},
            on_failure=chance.choice(("stop", "quarantine", "warn") if not failed else ("quarantine", "warn")),
            outcome="failed" if failed else "passed",
            checked=checked,
            failing=failing,
            observed=trend[-1],
            detail=f"{failing} of {checked} rows fail, for example {seen}, in partition {chance.randrange(64)}",
            trend=trend,
        )
        if failed:
            result["rows"] = f"hindcast failing restaurant 3 {table} {place}"
        empty = {"opened": 9, "closed": 0, "corrected": 0, "gates": []}
        told["tables"].setdefault(table, empty)["gates"].append(result)
    return told


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] not in ("style", "script"):
            self.texts.append(data)


def text(html: str) -> str:
    """What the page says where scripts do not run."""
    return " ".join(" ".join(Elements(html).texts).split())


def embedded(html: str) -> Any:
    """The report that is in the page."""
    found = re.search(r'id="embedded">([A-Za-z0-9+/=]+)</script>', html)
    assert found
    return json.loads(zlib.decompress(b64decode(found[1])).split(b"\n")[0])


@pytest.mark.parametrize(
    ("report", "kind", "sentence"),
    [
        (made(gate(), gate()), "passed", "Run 3 of restaurant was published; all 2 gates passed."),
        (made(gate()), "passed", "Run 3 of restaurant was published; its gate passed."),
        (made(), "passed", "Run 3 of restaurant was published; it has no gates."),
        (made(tables={"bills": {"opened": 0}}), "passed", "Run 3 of restaurant changed nothing; it has no gates."),
        (
            held_back(),
            "attention",
            "Run 3 of restaurant was published; 1 of 3 gates failed (quarantine): 2 keys of bills are held back.",
        ),
        (
            held_back(newly=0),
            "passed",
            (
                "Run 3 of restaurant was published; 1 of 3 gates failed (quarantine); "
                "2 keys of bills still wait for approval."
            ),
        ),
        (
            held_back(newly=0, noLongerHeld={"released": 1}, held=None),
            "passed",
            (
                "Run 3 of restaurant was published; 1 of 3 gates failed on released rows; "
                "1 held key of bills was released."
            ),
        ),
        (
            held_back(noLongerHeld={"released": 1}),
            "attention",
            (
                "Run 3 of restaurant was published; 1 of 3 gates failed (quarantine): "
                "2 keys of bills are held back; 1 held key of bills was released."
            ),
        ),
        (
            held_back(newly=0, noLongerHeld={"released": 1}),
            "passed",
            (
                "Run 3 of restaurant was published; 1 of 3 gates failed (quarantine); "
                "2 keys of bills still wait for approval; 1 held key of bills was released."
            ),
        ),
        (
            held_back(newly=0, opened=0, closed=0),
            "passed",
            (
                "Run 3 of restaurant changed nothing; 1 of 3 gates failed (quarantine); "
                "2 keys of bills still wait for approval."
            ),
        ),
        (
            made(FAILED, {**FAILED, "on_failure": "warn"}, gate(outcome="error"), gate(outcome="unchecked"), gate()),
            "attention",
            (
                "Run 3 of restaurant was published; 2 of 5 gates failed (1 quarantine, 1 warn), "
                "1 could not be evaluated, 1 was not checked."
            ),
        ),
        (
            made(gate(outcome="unchecked"), gate(outcome="unchecked")),
            "unchecked",
            "Run 3 of restaurant was published; 2 of 2 gates were not checked.",
        ),
        (
            made(gate(outcome="unchecked"), gate()),
            "passed",
            "Run 3 of restaurant was published; 1 of 2 gates was not checked.",
        ),
        (
            stopped(),
            "stopped",
            (
                "Run 3 of restaurant was stopped by a gate of bills: "
                "nothing of bills was published, nor of what depends on it."
            ),
        ),
        ({"pipeline": "restaurant", "run": 4, "state": "stopped"}, "stopped", "Run 4 of restaurant was stopped."),
        ({}, "passed", "Run 0 of ? was published; it has no gates."),
    ],
)
def test_the_verdict_is_a_sentence(report: dict[str, Any], kind: str, sentence: str) -> None:
    assert reports.summarize_outcome(report)[:2] == (kind, sentence)
    assert sentence in text(reports.render_page(report))


def test_a_brief_verdict_is_what_went_wrong_or_that_nothing_did() -> None:
    def summarize(report: dict[str, Any]) -> str:
        return reports.summarize_outcome(report).brief

    gates = [{"outcome": outcome, "on_failure": "warn"} for outcome in ("passed", "failed", "passed", "failed")]
    assert summarize({}) == "published"
    assert summarize({"tables": {"bills": {}}}) == "changed nothing"
    assert summarize({"tables": {"bills": {"opened": 1, "gates": gates[::2]}}}) == "published"
    assert summarize({"tables": {"bills": {"opened": 1, "gates": gates}}}) == "2 of 4 gates failed (warn)"
    assert summarize(stopped()) == "stopped by a gate of bills"


def test_offsets_are_the_sum_of_their_fates() -> None:
    told = text(reports.render_page(made()))
    assert "Each record was accepted or refused, with its reason. ✓ All 52 are accounted for." in told
    assert "100 to 111 ✓ 12 = 10 accepted + 2 expired" in told
    assert "0 to 39 ✓ 40 = 40 accepted" in told
    for note in (
        "2 late",
        "1 without a value",
        "earlier records under the current contract: 3 accepted",
        "1 partition had nothing new",
    ):
        assert note in told


def test_one_record_is_accounted_for_in_the_singular() -> None:
    report = made()
    report["topics"]["menu"] |= {"offsets": 0, "partitions": []}
    report["topics"]["orders"] |= {
        "offsets": 1, "partitions": [{"partition": 0, "start": 0, "end": 1, "fates": {"accepted": 1}}]
    }  # fmt: skip
    assert "✓ It is accounted for." in text(reports.render_page(report))


def test_numbers_of_gates_have_separators_without_the_script() -> None:
    told = reports.render_page(made({**FAILED, "checked": 16028, "failing": 1200, "observed": 0.25}))
    cells = [cell.strip() for cell in re.findall(r'<td class="number" data-label="\w+">([^<]*)</td>', told)]
    assert cells[-3:] == ["16,028", "1,200", "0.25"]


def test_offsets_that_do_not_add_up_are_told_at_the_top_and_at_their_partition() -> None:
    report = made()
    report["topics"]["orders"]["partitions"][0]["fates"] = {"accepted": 38, "malformed": 1}
    told = text(reports.render_page(report))
    assert reports.summarize_outcome(report).kind == "attention"
    assert "it has no gates; the offsets and fates of orders do not add up." in told
    assert "✗ The counts do not add up for orders." in told
    assert "✗ 40 ≠ 39 = 38 accepted + 1 malformed: does not add up" in told

    report = made()
    report["topics"]["menu"]["partitions"].pop(0)
    assert "the offsets and fates of menu do not add up" in reports.summarize_outcome(report).sentence
    assert "✗ 12 offsets in all, 0 in its partitions: does not add up" in text(reports.render_page(report))


def test_a_topic_without_new_offsets_is_told_if_its_fates_were_decided_anew() -> None:
    report = made()
    report["topics"]["menu"] |= {"offsets": 0, "late": 0, "partitions": []}
    told = text(reports.render_page(report))
    assert "menu restaurant.menu earlier records under the current contract: 3 accepted no new offsets" in told
    del report["topics"]["menu"]["decidedAnew"]
    assert "Nothing new: menu." in text(reports.render_page(report))


def test_past_answers_by_table_and_age() -> None:
    report = held_back()
    report["tables"]["orders"] = {"opened": 4000, "closed": 0, "corrected": 0}
    report["tables"]["bills"]["newlyLeftOut"] = {"no_key": 0, "too_late": 2}
    report["tables"]["bills"]["closedUpTo"] = "2026-01-01T00:59:00+00:00"
    told = text(reports.render_page(report))
    assert "5 corrections" in told
    assert "Corrections under an hour under a day under a week under 30 days older than 30 days" in told
    assert (
        "bills held back: 2 keys with 3 rows, 1 key newly left out: 2 too late "
        "windows closed up to 2026-01-01 00:59:00 UTC 45 5 5 3 1 0 0 1 "
        "Rows opened or closed, but nothing corrected: orders (4,000 opened, 0 closed). Unchanged: menu." in told
    )


def test_gates_that_failed_are_in_the_html_worst_first() -> None:
    outcomes = [("failed", "warn"), ("error", "stop"), ("passed", "stop"), ("failed", "stop"), ("unchecked", "warn")]
    report = made(*({**FAILED, "outcome": outcome, "on_failure": act} for outcome, act in outcomes))
    told = text(reports.render_page(report))
    found = re.findall(
        r"(\S) (\w+) bills amount must be [\w ]+ expect_column\w+ \(column='amount'.*?\) .*? (stop|warn) 40 2 2", told
    )
    assert found == [("✗", "failed", "stop"), ("✗", "failed", "warn"), ("!", "error", "stop")]
    assert "Failing rows: hindcast failing restaurant 3 bills 1" in told


def test_of_a_run_that_was_stopped_the_page_says_what_stopped_it() -> None:
    told = text(reports.render_page(stopped()))
    assert "Why it was stopped bills was not published: amount must be" in told
    assert "2 of 40 rows fail. The whole message" in told
    assert "restaurant.bills: 1 of 2 gates stopped it" in told
    assert "hindcast run restaurant" in told


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_of_a_report_becomes_html(hostile: str) -> None:
    def named(name: str) -> dict[str, Any]:
        failed = {
            **FAILED,
            **dict.fromkeys(("expectation", "detail", "rows", "on_failure"), name),
            "kwargs": {name: name},
        }
        report = made(failed, {**failed, "outcome": "error", "observed": name, "checked": None})
        report["tables"][name] = {**report["tables"].pop("bills"), "ages": {name: 1}, "newlyLeftOut": {name: 1}}
        report["topics"][name] = {**report["topics"].pop("menu"), "topic": f"{name}{name}"}
        report["topics"][name]["partitions"][0]["fates"] = {name: 12}
        keys = ("pipeline", "runId", "again", "found", "run")
        return {**report, **dict.fromkeys(keys, name), "state": "stopped"}

    html = reports.render_page(named(hostile))
    assert Elements(html).found == Elements(reports.render_page(named("plain"))).found
    assert embedded(html) == named(hostile)
    html.encode("utf-8")


@pytest.mark.parametrize("missing", ["topics", "tables", "knownAt", "intervalEnd", "runId", "again", "state", "run"])
def test_what_a_report_lacks_is_left_out(missing: str) -> None:
    whole = held_back()
    report = {name: part for name, part in whole.items() if name != missing}
    shown = embedded(reports.render_page(report))
    assert {name: part for name, part in shown.items() if name != missing} == {**report}
    assert not shown.get(missing) or (missing, shown[missing]) == ("state", "completed")
    reports.render_page(whole | {missing: None})


def test_parts_of_topics_tables_and_gates_may_be_missing() -> None:
    told = text(reports.render_page(made(topics={"menu": {}}, tables={"menu": {}, "bills": {"gates": [{}]}})))
    assert "Nothing new: menu." in told
    assert "Unchanged: menu, bills." in told
    assert "! error bills ? must hold ? ()" in told


def test_the_report_comes_back_from_the_page() -> None:
    report = made(gate(kwargs={"max_value": 2**63 - 1, "min_value": -1e-300}), FAILED)
    assert embedded(reports.render_page(report)) == report
    assert (
        embedded(reports.render_page(made(gate(observed=float("nan")))))["tables"]["bills"]["gates"][0]["observed"]
        == "NaN"
    )


def test_five_thousand_gates_are_less_than_a_megabyte() -> None:
    report = many()
    html = reports.render_page(report)
    print(f"5,000 gates: {len(html.encode()):,} bytes; as plain JSON {len(json.dumps(report)):,}")
    assert len(html.encode()) < 1_000_000
    assert embedded(html) == report


def test_the_page_names_nothing_outside_itself() -> None:
    html = reports.render_page(held_back())
    assert re.findall(r'(?:src|href|action)="(?!#|data:,")[^"]*"', html) == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """One headless Chromium for all tests of this module."""
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


Open = Callable[..., "WebDriver"]


@pytest.fixture
def opened(browser: WebDriver, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a report; at the end nothing may have been written to the browser's console."""

    def open_(report: dict[str, Any], address: str = "") -> WebDriver:
        file = tmp_path / "page.html"
        file.write_text(reports.render_page(report), encoding="utf-8")
        browser.get("about:blank")
        browser.get(file.as_uri() + address)
        until(browser, "return performance.getEntriesByName('gates shown').length")
        return browser

    browser.get_log("browser")
    yield open_
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def until(browser: WebDriver, script: str) -> Any:
    """What the script returns, once that is something."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 10, 0.02).until(lambda b: b.execute_script(script))


def press(browser: WebDriver, *keys: str) -> None:
    """Presses keys where the focus is."""
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def shown(browser: WebDriver) -> list[list[str]]:
    """The gates that the page shows: outcome, table, what it expects."""
    return browser.execute_script(
        "return [...document.querySelectorAll('#results tbody tr[aria-expanded]')]"
        ".map((row) => [...row.cells].slice(0, 3).map((cell) => cell.innerText.trim()))"
    )


def status(browser: WebDriver) -> str:
    return browser.execute_script("return document.getElementById('status').textContent")


def focused(browser: WebDriver) -> Any:
    """The number of the row that has the focus, or the id of what else has."""
    return browser.execute_script("return document.activeElement.index ?? document.activeElement.id")


def test_five_thousand_gates_are_shown_filtered_and_paged(opened: Open) -> None:
    report = many()
    gates = [(name, told) for name, table in report["tables"].items() for told in table["gates"]]
    failed = [name for name, told in gates if told["outcome"] == "failed"]
    b = opened(report)
    took = b.execute_script("return performance.getEntriesByName('gates shown')[0].startTime")
    assert status(b) == "5,000 of 5,000 gates; 1 to 100 shown"
    assert {outcome for outcome, *_ in shown(b)} == {"✗ failed"}
    filtering = b.execute_script(
        "const t = performance.now(), f = document.getElementById('filter'); f.value = 'table_042 failed';"
        "f.dispatchEvent(new Event('input')); document.body.offsetHeight; return performance.now() - t"
    )
    print(f"5,000 gates: shown after {took:.0f} ms, filtered and laid out in {filtering:.0f} ms")
    assert {table for _, table, _ in shown(b)} == {"table_042"}
    assert len(shown(b)) == failed.count("table_042")
    assert b.execute_script("return document.querySelector('[data-count=failed]').textContent") == str(len(shown(b)))
    assert "filter=table_042+failed" in b.current_url

    b = opened(report, "#outcome=failed&page=2")
    assert status(b) == f"{len(failed)} of 5,000 gates; 101 to 200 shown"
    b.execute_script("document.getElementById('next').click()")
    assert "201 to 300 shown" in status(b)
    press(b, "k", "k")
    assert focused(b) == 199
    assert "101 to 200 shown" in status(b)


def test_the_keyboard_reaches_everything(opened: Open) -> None:
    from selenium.webdriver.common.keys import Keys

    b = opened(made(gate(), FAILED, gate(gate=2, expectation="expect_it")))
    press(b, "j")
    assert focused(b) == 0
    press(b, "j", Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert focused(b) == 2
    press(b, "k", Keys.ARROW_UP)
    assert focused(b) == 0
    details = "return document.querySelector('.details')?.innerText"
    assert "hindcast failing restaurant 3 bills 1" in b.execute_script(details)
    press(b, Keys.ENTER)
    assert b.execute_script(details) is None
    press(b, Keys.ENTER)
    assert b.execute_script("return document.activeElement.getAttribute('aria-expanded')") == "true"
    press(b, Keys.TAB)
    assert b.execute_script("return document.activeElement.className") == "copy"
    press(b, Keys.ENTER)
    assert b.execute_script("return getSelection().toString()") == "hindcast failing restaurant 3 bills 1"
    assert b.execute_script("return document.activeElement.textContent") == "Copied"
    press(b, Keys.ESCAPE)
    assert (focused(b), b.execute_script(details)) == (0, None)
    press(b, "/")
    assert focused(b) == "filter"
    press(b, *"expect_it", Keys.ENTER)
    assert (focused(b), status(b)) == (0, "1 of 3 gates")
    press(b, "/", Keys.ESCAPE)
    assert status(b) == "3 of 3 gates"
    press(b, "x", "j", "/")
    assert (status(b), focused(b)) == ("0 of 3 gates", "filter")
    press(b, Keys.ESCAPE, Keys.TAB, "?")
    dialog = "return document.getElementById('keys').open"
    assert b.execute_script(dialog) is True
    press(b, Keys.ESCAPE)
    assert b.execute_script(dialog) is False


def test_outcomes_have_a_sign_and_a_word_and_trends_tell_their_numbers(opened: Open) -> None:
    outcomes = ("passed", "failed", "error", "unchecked")
    b = opened(made(*({**FAILED, "outcome": outcome} for outcome in outcomes)))
    assert [outcome for outcome, *_ in shown(b)] == ["✗ failed", "! error", f"{EN_DASH} unchecked", "✓ passed"]
    told = b.execute_script("return document.querySelector('.spark').getAttribute('aria-label')")
    assert told == f"Observed in 4 runs, oldest first: 0, 1, {EN_DASH}, 2"
    assert b.execute_script("return document.querySelector('.spark path').getAttribute('d').match(/M/g).length") == 2
    b.execute_script("document.querySelector('[value=error]').click()")
    assert [outcome for outcome, *_ in shown(b)] == ["! error"]


def test_two_observations_are_no_trend_and_a_gate_has_its_place_in_words(opened: Open) -> None:
    b = opened(made({**FAILED, "gate": 0, "trend": [0, 1]}, {**FAILED, "gate": 9, "trend": [1]}))
    assert b.execute_script("return document.querySelectorAll('.spark').length") == 0
    details = b.execute_script("return [...document.querySelectorAll('.details')].map((row) => row.textContent)")
    assert ["the first gate of bills" in details[0], "gate 10 of bills" in details[1]] == [True, True]


def test_hostile_text_stays_text(opened: Open) -> None:
    texts = ("expectation", "detail", "rows", "on_failure")
    gates = [{**FAILED, **dict.fromkeys(texts, h), "kwargs": {h: h}, "trend": [h, 1e308, -1e308]} for h in HOSTILE]
    report = made(*gates, pipeline=HOSTILE[0], found=HOSTILE[0], state="stopped")
    report["tables"] |= dict.fromkeys(HOSTILE, report["tables"]["bills"])
    b = opened(report)
    b.execute_script("document.querySelectorAll('#results tr[aria-expanded=false]').forEach((row) => row.click())")
    assert b.execute_script("return document.querySelectorAll('.details').length") == len(HOSTILE) * (len(HOSTILE) + 1)
    assert b.execute_script("return document.querySelectorAll('img, script:not(#embedded)').length") == 2, "ours"
    assert "taken" not in b.title.replace("document.title='taken'", "")
    assert HOSTILE[0] in b.execute_script("return document.querySelector('.details').innerText")


def test_the_page_asks_for_nothing_and_may_not(opened: Open, browser: WebDriver) -> None:
    asked: list[str] = []

    class Count(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Count)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        b = opened(held_back())
        assert b.execute_script("return performance.getEntriesByType('resource').map((r) => r.name)") == []
        refused = b.execute_async_script(
            """
            const [address, done] = arguments, refused = new Set();
            addEventListener("securitypolicyviolation", (event) => {
              refused.add(event.effectiveDirective);
              if (refused.size === 5) done([...refused].sort());
            });
            new Image().src = `${address}/image`;
            fetch(`${address}/fetch`).catch(() => {});
            for (const [tag, name, more] of [["script", "src"], ["iframe", "src"], ["link", "href", "stylesheet"]]) {
              const node = document.createElement(tag);
              if (more) node.rel = more;
              node[name] = `${address}/${tag}`;
              document.body.append(node);
            }
            """,
            f"http://127.0.0.1:{server.server_port}",
        )
        assert refused == ["connect-src", "frame-src", "img-src", "script-src-elem", "style-src-elem"]
        assert asked == []
    finally:
        server.shutdown()
        server.server_close()
    browser.get_log("browser")  # the browser tells each refusal


def test_saved_json_is_the_report(opened: Open) -> None:
    report = made(gate(kwargs={"max_value": 2**63 - 1, "min_value": 1.0, "names": HOSTILE}), FAILED)
    b = opened(report)
    b.execute_script("document.getElementById('save').click()")
    folder = Path(b.capabilities["chrome"]["userDataDir"]).parent / "saved"
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(b, 10, 0.02).until(lambda _: (folder / "restaurant-run-3.json").exists())
    assert json.loads((folder / "restaurant-run-3.json").read_text(encoding="utf-8")) == report


def test_without_scripts_the_page_can_be_read(browser: WebDriver, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(reports.render_page(held_back()), encoding="utf-8")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(file.as_uri())
        told = browser.execute_script("return document.body.innerText")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    for words in (
        "2 keys of bills are held back",
        "12 = 10 accepted + 2 expired",
        "5 corrections",
        "2 of 40 rows fail, for example -3.00, -2.50",
        "hindcast failing restaurant 3 bills 1",
        "hindcast report restaurant 3 --format json",
    ):
        assert words in told
    assert "Save as JSON" not in told


def test_on_a_phone_nothing_is_cut_off(opened: Open) -> None:
    b = opened(held_back())
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        assert b.execute_script("return document.documentElement.scrollWidth") <= 360
    finally:
        b.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
