"""A server with a token, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

from selenium.webdriver.common.by import By

from tests.state.page.browser import Page, Server
from tests.state.page.story import eventful


def test_a_server_with_a_token_is_opened_with_it_once(page: Page, start_server: Callable[..., Server]) -> None:
    server = start_server("--token", "a-long-and-secret-word")
    story = eventful()
    story.catch_up()
    story.look()
    server.send(*story.lines)
    page.open(f"{server.url}?token=a-long-and-secret-word")
    for link in page.driver.find_elements(By.LINK_TEXT, "on to the page"):
        link.click()
    page.wait_text("status-word", "RUNNING")
    page.wait_text("line", "live")
    page.wait_kinds(active=8, standby=2)
