"""A real Chromium that looks at the dashboard, driven from a test whose event loop serves it.

Every call goes to a thread, so that the router in this process can answer meanwhile. Nothing waits for a
time: all waits are for a condition, with a limit that a busy machine keeps to.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

LIMIT_S = 60.0

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-background-timer-throttling",
    "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows",
    "--proxy-server=direct://",
    "--window-size=1280,900",
)

# What Chromium writes when a server is gone, which is what some tests are about.
_GONE = ("net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE")

_COUNT = ("SEVERE", "WARNING")

Answer = TypeVar("Answer")


def start_browser(profile: Path) -> webdriver.Chrome:
    """Chromium with an empty profile. Skips the test where there is none, unless HOMING_BROWSER=required."""
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        missing = "chromium" if binary is None else "chromedriver"
        if os.environ.get("HOMING_BROWSER") == "required":
            pytest.fail(
                f"HOMING_BROWSER=required, and there is no {missing} (Debian: chromium chromium-driver)"
            )
        pytest.skip(f"no {missing} here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


async def eventually(check: Callable[[], Awaitable[None]]) -> None:
    """Try until nothing is asserted in vain: the page follows what it shows, a moment behind."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        try:
            await check()
        except AssertionError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)
        else:
            return


class Browser:
    """One window of it, for one test."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.base = ""

    async def call(self, do: Callable[[], Answer]) -> Answer:
        return await asyncio.to_thread(do)

    async def open(self, base: str, way: str = "/") -> None:
        """The dashboard at `base`, anew, and wait until it shows what it was told."""
        self.base = base
        await self.call(lambda: self.driver.get("about:blank"))
        await self.call(lambda: self.driver.get(f"{base}/#{way}"))
        await self.settled()

    async def go(self, way: str) -> None:
        """Another view, by its address."""
        await self.js(f"location.hash = {json.dumps('#' + way)}")
        await self.settled()

    async def settled(self) -> None:
        await self.until("document.querySelector('main h1') && !document.querySelector('.loading')")

    async def js(self, expression: str) -> Any:
        """What an expression is in the page."""
        return await self.call(lambda: self.driver.execute_script(f"return ({expression})"))

    async def until(self, condition: str) -> Any:
        """Wait until an expression holds in the page, and answer what it is."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while not (found := await self.js(condition)):
            if asyncio.get_running_loop().time() > deadline:
                text = await self.js("document.body.innerText.slice(0, 3000)")
                raise AssertionError(f"never true in the page: {condition}\n{text}")
            await asyncio.sleep(0.05)
        return found

    async def text(self, selector: str = "main") -> str:
        """As it is seen."""
        return str(await self.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def rows(self, label: str) -> list[list[str]]:
        """The cells of a table, by its label."""
        found: list[list[str]] = await self.js(
            f"[...document.querySelectorAll('[aria-label={json.dumps(label)}] tbody tr')]"
            ".map((row) => [...row.children].map((cell) => cell.innerText.trim()))"
        )
        return found

    async def click(self, selector: str) -> None:
        await self.call(lambda: self.driver.find_element(By.CSS_SELECTOR, selector).click())

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.call(lambda: ActionChains(self.driver).send_keys(text).perform())

    async def press(self, key: str, times: int = 1) -> None:
        """A key by its name, `TAB` or `ENTER`."""
        await self.call(lambda: ActionChains(self.driver).send_keys(getattr(Keys, key) * times).perform())

    async def screen(self, width: int, height: int, *, phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        await self.cdp("Emulation.setDeviceMetricsOverride", metrics)

    async def prefers(self, **features: str) -> None:
        """`color_scheme="dark"` and the like."""
        wanted = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()
        ]
        await self.cdp("Emulation.setEmulatedMedia", {"features": wanted})

    async def cdp(self, command: str, parameters: dict[str, Any]) -> Any:
        return await self.call(lambda: self.driver.execute_cdp_cmd(command, parameters))

    async def console(self, *, gone: bool = False, refused: bool = False) -> list[str]:
        """Errors and warnings since the last call. `gone`: but for those that a server which is not there
        makes, `refused`: but for those that a refused request does."""
        entries = await self.call(lambda: self.driver.get_log("browser"))
        lines = [f"{entry['level']}: {entry['message']}" for entry in entries if entry["level"] in _COUNT]
        if gone:
            lines = [line for line in lines if not any(mark in line for mark in _GONE)]
        if refused:
            lines = [line for line in lines if "the server responded with a status of 40" not in line]
        return lines
