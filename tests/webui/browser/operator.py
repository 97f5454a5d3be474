"""A person at the pages who uses only the mouse, or only the keyboard, and whose clicks and keys are counted."""

from typing import Literal

from playwright.sync_api import Locator, Page, TimeoutError, expect

#: The key that opens a page after `g`, by the page's title in the navigation.
_PAGES = {
    "Queues": "q",
    "Job classes": "j",
    "Failures": "f",
    "Scheduled": "s",
    "Retries": "r",
    "Recurring": "c",
    "Statistics": "i",
    "Tenants": "l",
    "Workers": "w",
    "Problems": "p",
    "Audit": "a",
}

#: The most keys that lead to one control.
_MOST = 100

_FOCUSED = "element => element === document.activeElement"


class Operator:
    """Does what the mouse or the keyboard can, and counts it. Both type into fields."""

    def __init__(self, page: Page, hand: Literal["mouse", "keyboard"]) -> None:
        self.page = page
        self._by_mouse = hand == "mouse"
        #: Clicks of the mouse.
        self.clicks = 0
        #: Keys that lead somewhere or press something; the letters of a text are not counted.
        self.keys = 0

    def open(self, title: str) -> None:
        """Open a page of the navigation."""
        link = self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=title)
        if self._by_mouse:
            self._click(link)
            return
        self.keys += 2
        address = str(link.evaluate("link => link.href"))
        for _ in range(10):  # The two keys have to follow each other within 1.5 s: again if the machine stood still.
            self.page.keyboard.press("g")
            self.page.keyboard.press(_PAGES[title])
            try:
                self.page.wait_for_url(address, timeout=6_000)
            except TimeoutError:
                continue
            return
        raise AssertionError(f"g {_PAGES[title]} leads to {self.page.url}")

    def search(self, text: str) -> None:
        """Search all jobs."""
        if self._by_mouse:
            self._click(self.page.get_by_role("combobox", name="Search all jobs"))
        else:
            self._press("/")
        self.page.keyboard.type(text)
        self._press("Enter")
        self.page.wait_for_url("**/search?*")

    def use(self, control: Locator) -> None:
        """Follow a link, press a button, or tick a box."""
        if self._by_mouse:
            self._click(control)
        else:
            self._go(control)
            self._press("Space" if control.evaluate("element => element.matches('[type=checkbox]')") else "Enter")

    def write(self, field: Locator, text: str, *, send: bool = False) -> None:
        """Write this into a field in place of what it has; `send` presses Enter, as in a filter."""
        expect(field).to_be_visible()
        if self._by_mouse and not field.evaluate(_FOCUSED):
            self._click(field)
        elif not self._by_mouse:
            self._go(field)
        if field.input_value():
            self._press("Control+a")
        self.page.keyboard.insert_text(text)
        if send:
            self._press("Enter")

    def _click(self, control: Locator) -> None:
        control.click()
        self.clicks += 1

    def _press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.keys += 1

    def _go(self, control: Locator) -> None:
        """Bring the focus to a control: past the navigation, down the rows of a table, and from control to control."""
        expect(control).to_be_visible()
        expect(control).to_be_enabled()
        row = control.locator("xpath=ancestor::tr[ancestor::tbody][1]")
        if row.count() and not self.page.locator("dialog[open]").count():
            for _ in range(_MOST):
                if row.get_attribute("aria-current") is not None:
                    break
                self._press("j")
        elif self.page.evaluate("document.activeElement === document.body"):
            self._press("Tab")
            if not control.evaluate(_FOCUSED):
                self._press("Enter")  # "Skip to content"
        back = "element => document.activeElement.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_PRECEDING"
        key = "Shift+Tab" if control.evaluate(back) else "Tab"
        for _ in range(_MOST):
            if control.evaluate(_FOCUSED):
                return
            self._press(key)
        raise AssertionError(f"the keyboard does not lead to {control}")
