"""One browser for all tests that need one, a server and a page for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from selenium import webdriver

# A real run is followed too, under the rules of the integration tests: nothing may be left of it.
from tests.integration.conftest import cluster, pytest_runtest_makereport  # noqa: F401
from tests.state.page.browser import INSTALL, Page, Server, is_installed, start_browser


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not is_installed():
        pytest.skip(f"no chromium or no chromedriver here: {INSTALL}")
    driver = start_browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    servers: list[Server] = []

    def start(*options: str) -> Server:
        servers.append(Server(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server()


@pytest.fixture
def page(driver: webdriver.Chrome, start_server: Callable[..., Server]) -> Iterator[Page]:  # noqa: ARG001
    """A page on which nothing goes wrong and which asks nobody but its own server; it goes before the servers do."""
    page = Page(driver)
    page.complaints()
    list(page.requested())
    yield page
    complaints, requested = page.complaints(), set(page.requested())
    driver.get("about:blank")
    assert complaints == []
    hosts = {urlsplit(url).netloc for url in requested if not url.startswith(("about:", "data:", "chrome:"))}
    assert len(hosts) <= 1, f"asked {hosts}"
    assert all(host.startswith("127.0.0.1:") for host in hosts)
