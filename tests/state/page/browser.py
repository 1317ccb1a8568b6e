"""A real browser, headless, and what a test sees through it; and the server it looks at.

Waits for what a user would see, and fails with what there was to be seen.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

INSTALL = "apt-get install -y chromium chromium-driver"
ROOT = Path(__file__).parents[3]
WAIT_S = 60.0
"""How long anything may take that takes a second on a quiet machine."""
POLL_S = 0.05
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
LOST = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE")
"""What the browser itself says of a server that is gone."""

T = TypeVar("T")


def is_installed() -> bool:
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


def start_browser(directory: Path) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in (*SWITCHES, f"--user-data-dir={directory}", "--window-size=1280,800"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options, Service(shutil.which("chromedriver")))


class Server:
    """The server's process. It can be killed and come again at the same port."""

    def __init__(self, *options: str) -> None:
        self.options = options
        self.port = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.state.page.server", str(self.port), *self.options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, "the server ended at its start: see its error above"
        self.port = int(said)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(lines))
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Page:
    """One page in the browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.may_lose_server = False

    # --- opening ----------------------------------------------------------------------------------------

    def open(self, url: str, *, width: int = 1280, height: int = 800, theme: str = "dark") -> None:
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get(url)

    def save(self, path: Path) -> None:
        """A picture of what is in sight."""
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path.write_bytes(base64.b64decode(shot["data"]))

    # --- seeing -----------------------------------------------------------------------------------------

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def at(self, id_: str) -> WebElement:
        return self.driver.find_element(By.ID, id_)

    def text(self, id_: str) -> str:
        """What a user reads there; nothing if it is hidden."""
        return self.at(id_).text

    def all(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)"
        return list(self.run(script, selector))

    def wait(self, what: str, look: Callable[[], T | None], timeout_s: float = WAIT_S) -> T:
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(StaleElementReferenceException):
                if found := look():
                    return found
            if time.monotonic() > deadline:
                body = self.driver.find_element(By.TAG_NAME, "body").text
                raise AssertionError(f"not within {timeout_s:g} s: {what}\n{body}\n{self.complaints()}")
            time.sleep(POLL_S)

    def wait_text(self, id_: str, wanted: str) -> str:
        return self.wait(f"{wanted!r} in #{id_}", lambda: text if wanted in (text := self.text(id_)) else None)

    def kinds(self) -> dict[str, int]:
        """How many nodes of each kind the page says there are."""
        found: dict[str, int] = {}
        for text in self.all("#kinds button"):
            _, _, rest = text.replace("\n", " ").partition(" ")
            name, _, number = rest.rpartition(" ")
            found[name.strip()] = int(number.replace(",", ""))
        return found

    def wait_kinds(self, **wanted: int) -> None:
        """Underscores stand for spaces."""
        named = {name.replace("_", " "): number for name, number in wanted.items()}
        self.wait(f"{named} nodes", lambda: self.kinds() == named or None)

    def wait_drawn(self, cells: int) -> float:
        """The milliseconds it took to draw so many nodes the last time."""
        grid = self.at("grid")
        self.wait(f"{cells} nodes drawn", lambda: grid.get_attribute("data-cells") == str(cells) or None)
        return float(grid.get_attribute("data-draw-ms") or "nan")

    def pixel(self, x: int, y: int) -> tuple[int, ...]:
        """The colour at a point of the grid."""
        # Through a canvas of the test's own: one that is read is drawn another way, and the browser says so.
        script = """const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            pen.drawImage(document.getElementById('grid'), -arguments[0], -arguments[1]);
            return [...pen.getImageData(0, 0, 1, 1).data]"""
        return tuple(self.run(script, x, y))

    def details(self) -> dict[str, str]:
        """What the panel of one node says, by its labels."""
        script = """return Object.fromEntries([...document.querySelectorAll('#node dt')].map(
            (each) => [each.innerText, each.nextElementSibling.innerText.replace(/\\s*copy$/, '')]))"""
        return dict(self.run(script))

    def events(self) -> list[str]:
        return self.all("#event-list .text")

    # --- doing ------------------------------------------------------------------------------------------

    def search(self, text: str) -> list[str]:
        """Type it, and read what is found."""
        field = self.at("search")
        field.clear()
        field.send_keys(text)
        return self.all("#found button")

    def pick(self, text: str) -> dict[str, str]:
        """Search, take the first with Enter, and read its details."""
        self.search(text)
        self.at("search").send_keys(Keys.ENTER)
        return self.details()

    def point_at_cell(self, x: int, y: int) -> ActionChains:
        """Move the mouse to a point of the grid, from its upper left."""
        grid = self.at("grid")
        self.run("arguments[0].scrollIntoView({block: 'center'})", grid)
        size = grid.size
        chain = ActionChains(self.driver)
        chain.move_to_element_with_offset(grid, x - size["width"] // 2, y - size["height"] // 2).perform()
        return ActionChains(self.driver)

    def click_cell(self, x: int, y: int) -> None:
        self.point_at_cell(x, y).click().perform()

    # --- afterwards ---------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """What the console said; without that a server was gone, where it was."""
        found: list[str] = [
            entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]
        return [each for each in found if not (self.may_lose_server and any(word in each for word in LOST))]

    def requested(self) -> Iterator[str]:
        """Every address that was asked for since the last time."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                yield message["params"]["request"]["url"]
