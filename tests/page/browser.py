"""How Chromium is started, for tests and screenshots."""

CHROMIUM = "chromium"
FLAGS = (
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
