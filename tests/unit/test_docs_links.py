"""Links of the documents: every relative link leads to a file of the tree, and to a heading in it."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [ROOT / line for line in listed.stdout.splitlines()]
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]  # a copy without git


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(FENCE.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue  # another site, or mail
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"({link}): there is no {target}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"({link}): no such heading"
