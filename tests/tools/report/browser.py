"""Pages in a real browser: Debian's Chromium, without a screen."""

import contextlib
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

# As root and in a container Chromium needs the second and third; the others keep it from asking
# anyone for anything.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)

# Everything with text of its own that is shown: its colour, what is behind it, its size.
TEXTS = """
const found = [];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].some(n => n.nodeType == 3 && n.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest("title, .hidden")) continue;
  let behind = element;
  while (behind && getComputedStyle(behind).backgroundColor == "rgba(0, 0, 0, 0)")
    behind = behind.parentElement;
  const style = getComputedStyle(element), drawn = element.ownerSVGElement;
  found.push([element.textContent.slice(0, 40), drawn ? style.fill : style.color,
              getComputedStyle(behind || document.documentElement).backgroundColor,
              parseFloat(style.fontSize) * (drawn ? element.getScreenCTM().a : 1)]);
}
return found;
"""


@contextlib.contextmanager
def chromium():
    """A browser; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in paths:
        pytest.skip("chromium and chromedriver are not on the PATH (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = paths[0]
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=paths[1])
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """Shows one page at a time."""

    def __init__(self, driver):
        self.driver = driver

    def show(self, path, width, height=900, scheme="light"):
        """Loads a page in a window of that width; empties the logs first."""
        self.driver.get("about:blank")  # the same page again could be looked at before it is whole
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self._command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._command("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.as_uri())
        self._uri = path.as_uri()
        loaded = "return document.readyState == 'complete' && location.href == arguments[0]"
        self.wait_until(lambda: self.driver.execute_script(loaded, self._uri))
        return self

    def wait_until(self, holds):
        """Waits until `holds()` is true; raises after a minute."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda _: holds())

    def run(self, script):
        return self.driver.execute_script(script)

    def open_details(self):
        self.run("for (const one of document.querySelectorAll('details')) one.open = true;")

    def complaints(self):
        """What the console has said since the page was loaded."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """What was asked for since the page was loaded, but for the page."""
        events = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        messages = [event["message"] for event in events]
        urls = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if url != self._uri and not url.startswith("data:")]

    def picture(self):
        """The window's colours, rows by columns by red, green and blue."""
        return np.asarray(
            Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        )

    def overflow(self):
        """By how many pixels the page is wider than the window."""
        return self.run("return document.documentElement.scrollWidth - innerWidth")

    def texts(self):
        """(text, colour, colour behind it, size in pixels) of what is shown."""
        return [
            (text, channels(ink), channels(ground), size)
            for text, ink, ground, size in self.run(TEXTS)
        ]

    def _command(self, name, parameters):
        self.driver.execute_cdp_cmd(name, parameters)


def channels(colour):
    """`rgb(1, 2, 3)` as numbers."""
    return [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]


def contrast(one, other):
    """The ratio of two colours' luminances by WCAG 2.1, from 1 to 21."""

    def luminance(colour):
        linear = np.asarray(colour) / 255
        linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def colours(picture):
    """How many colours a picture has."""
    return len(np.unique(picture.astype("uint32") @ np.array([1 << 16, 1 << 8, 1], "uint32")))
