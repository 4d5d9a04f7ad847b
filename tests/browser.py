"""What tests of pages share: a headless Chromium, a running Airflow, and logging in to it.

with running(tmp_path, login=True) as up, chromium(tmp_path / "browser") as browser:
    log_in(browser, up)
    browser.get(f"{up.url}/dags/restaurant")
    shown(browser, "//h1[text()='restaurant']")
    picture(browser, "dag")
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from hindcast.common.session import SHORT_LIVED_JVM_OPTIONS
from hindcast.common.settings import Settings, read_settings
from hindcast_local import airflow, ports, process, stack
from hindcast_local.api import AirflowClient
from pipelines import until

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


class Up(NamedTuple):
    """A stack that runs: its settings, and Airflow's API for an administrator."""

    now: Settings
    web: AirflowClient

    @property
    def url(self) -> str:
        """Where the UI is."""
        return airflow.base_url(self.now)


@contextmanager
def running(folder: Path, *contracts: Path, login: bool = False, **variables: str) -> Iterator[Up]:
    """A stack of its own in a folder, with these contracts; stopped to its last process.

    `login`: the UI has the users admin and viewer, of these roles; otherwise admin alone.
    """
    numbers = {f"HINDCAST_{name}_PORT": str(ports.find_free_port()) for name in ("KAFKA", "AIRFLOW", "SPARK")}
    schemas = folder / "schemas"
    schemas.mkdir()
    for contract in contracts:
        shutil.copy(contract, schemas)
    users = {"HINDCAST_USERS": "admin:admin,viewer:viewer"} if login else {}
    settings = read_settings(
        {"HINDCAST_VAR": str(folder), "HINDCAST_SCHEMAS": str(schemas), **numbers, **users, **variables}
    )
    started: list[process.Process] = []
    try:
        _hindcast(settings, "start_stack")
        started = process.load_records(folder / "run")
        assert stack.is_up(settings)
        yield Up(settings, airflow.api(settings))
    finally:
        _hindcast(settings, "stop_stack")
    assert process.find_descendants(started) == []
    # The kernel frees the memory of a process that has ended before it closes its ports.
    until(lambda: not any(ports.is_listening(int(port)) for port in numbers.values()), 5)


@contextmanager
def chromium(folder: Path, size: str = "1280,900") -> Iterator[WebDriver]:
    """A headless Chromium that saves downloads in `folder`/saved; skips the test where there is none."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no chromium and chromedriver on the PATH (make test-browser installs them)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in [*flags.split(), "disable-component-update", "disable-sync", f"user-data-dir={folder / 'profile'}"]:
        options.add_argument(f"--{flag}")
    options.add_argument(f"--window-size={size}")
    options.add_experimental_option("prefs", {"download.default_directory": str(folder / "saved")})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as started:
        started.set_script_timeout(10)
        yield started


def log_in(browser: WebDriver, up: Up, user: str = "admin") -> None:
    """Logs in by Airflow's own form."""
    browser.get(up.url)
    shown(browser, "//input[@name='username']").send_keys(user)
    shown(browser, "//input[@name='password']").send_keys(airflow.ensure_passwords(up.now)[user])
    shown(browser, "//button[@type='submit']").click()
    waited(browser, lambda b: "/auth/login" not in b.current_url)


def shown(browser: WebDriver, xpath: str, seconds: float = 30) -> WebElement:
    """The first element that the XPath finds, once it is there and can be seen."""
    found: WebElement = waited(
        browser, lambda b: next((e for e in b.find_elements("xpath", xpath) if e.is_displayed()), None), seconds
    )
    return found


def waited(browser: WebDriver, condition: Any, seconds: float = 30) -> Any:
    """What the condition gives for the browser, once that is something; elements that are drawn anew meanwhile do.

    AssertionError with a picture of the page if it stays nothing.
    """
    from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
    from selenium.webdriver.support.wait import WebDriverWait

    try:
        return WebDriverWait(browser, seconds, 0.1, [StaleElementReferenceException]).until(condition)
    except TimeoutException:
        path = Path(browser.capabilities["chrome"]["userDataDir"]).parent / f"{time.time():.0f}.png"
        browser.save_screenshot(str(path))
        raise AssertionError(f"not there after {seconds:.0f} s; {browser.current_url} looks so: {path}") from None


def picture(browser: WebDriver, name: str) -> None:
    """Keeps what the browser shows as docs/pictures/<name>.png, where HINDCAST_PICTURES asks for that."""
    if os.environ.get("HINDCAST_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        browser.save_screenshot(str(PICTURES / f"{name}.png"))


def _hindcast(settings: Settings, command: str) -> None:
    code = (
        "from hindcast.common.settings import read_settings; from hindcast_local import stack; "
        f"stack.{command}(read_settings())"
    )
    env = {**os.environ, **settings.environment, "JDK_JAVA_OPTIONS": " ".join(SHORT_LIVED_JVM_OPTIONS)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=240)
