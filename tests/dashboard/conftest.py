"""A service with its dashboard for a module's tests, and a browser that suffers no fault of a page."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium.find(), args=["--no-sandbox"])
        yield found
        found.close()


Opened = Callable[..., Page]


@pytest.fixture
def opened(dashboard: Dashboard, browser: Browser) -> Iterator[Opened]:
    """Opens a page as somebody with these scopes; at the end no page may have complained, or asked anybody else."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def note(page: Page) -> None:
        page.on("console", lambda said: complaints.append(f"{page.url}: {said.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"{page.url}: dialog {dialog.message}"))

        def asked(url: str) -> None:
            if urlsplit(url).netloc != f"127.0.0.1:{dashboard.server.port}":
                complaints.append(f"{page.url} asked {url}")

        page.on("request", lambda request: asked(request.url))

    def opened(path: str, *scopes: str, **options: object) -> Page:
        context = browser.new_context(
            locale="en-US", viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options
        )  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(15_000)
        cookie = dashboard.cookie(*(scopes or ("admin", "view")))
        name, _, value = cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": dashboard.url}])
        page = context.new_page()
        note(page)
        page.goto(dashboard.url + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
