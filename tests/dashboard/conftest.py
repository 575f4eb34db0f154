"""A service with its dashboard for a module's tests, and a browser that suffers no fault of a page."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.dashboard import browser as chromium
from tests.dashboard.support import Dashboard
from tests.service.server import running


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder = Path(tmp_path_factory.mktemp("dashboard"))
    spec = f"sqlite://{folder}/jobs.db/demo"
    with running(spec, folder, "--ui", is_open=False) as server:
        yield Dashboard(server, spec, folder)


@pytest.fixture
def queue(dashboard: Dashboard) -> str:
    """A queue of one's own."""
    name = f"q-{uuid.uuid4().hex[:8]}"
    dashboard.inside(lambda backend: backend.create(), dashboard.spec.replace("/demo", f"/{name}"))
    return name


@pytest.fixture(scope="module")  # no longer: while it is open, its event loop runs on this thread
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """Opens pages as somebody with some scopes.

    Attributes:
        complaints: what pages, and the browser, have said on the console, and whom else they have asked.
    """

    def __init__(self, dashboard: Dashboard, browser: Browser) -> None:
        self.complaints: list[str] = []
        self._dashboard = dashboard
        self._browser = browser
        self._contexts: list[BrowserContext] = []

    def __call__(self, path: str, *scopes: str, **options: Any) -> Page:
        """Open a page.

        Args:
            path: of it.
            *scopes: by default all.
            **options: of the browser's context.
        """
        size = options.pop("viewport", {"width": 1280, "height": 800})
        context = self._browser.new_context(locale="en-US", viewport=size, **options)
        self._contexts.append(context)
        context.set_default_timeout(15_000)
        name, _, value = self._dashboard.cookie(*(scopes or ("admin", "view"))).partition("=")
        context.add_cookies([{"name": name, "value": value, "url": self._dashboard.url}])
        page = context.new_page()
        self._listen(page)
        page.goto(self._dashboard.url + path)
        return page

    def close(self) -> None:
        """Close them all."""
        for context in self._contexts:
            context.close()

    def _listen(self, page: Page) -> None:
        def said(message: ConsoleMessage) -> None:
            if (
                message.location["url"] != page.url
            ):  # a page that is an error is told, too; what it loads is another matter
                self.complaints.append(f"{page.url}: {message.text}")

        def asked(request: Request) -> None:
            if urlsplit(request.url).netloc != urlsplit(self._dashboard.url).netloc:
                self.complaints.append(f"{page.url} asked {request.url}")

        page.on("console", said)
        page.on("pageerror", lambda error: self.complaints.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"{page.url}: dialog {dialog.message}"))
        page.on("request", asked)


@pytest.fixture
def opened(dashboard: Dashboard, browser: Browser) -> Iterator[Opened]:
    """Opens pages; at the end none may have complained, or asked anybody else."""
    made = Opened(dashboard, browser)
    yield made
    made.close()
    assert made.complaints == []
