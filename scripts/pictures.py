"""Make the two pictures of the front page, docs/pictures/curve.png and episode.png, from a run of `palaestra demo`.

    CHROMIUM=/path/to/chromium python scripts/pictures.py [RUN]

The first is the curve that the demo drew. The second is one episode in the page that `palaestra view` writes, as a
Chromium shows it. Without RUN a demo is played first, which takes minutes. `make pictures` sets the browser up. Left
out: looking at them, which is yours to do.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WINDOW = {"width": 1160, "height": 3000}
"""In CSS pixels. Without the list at its left it is as wide as GitHub shows; it is higher than any episode."""
MARGIN = 10
LARGEST = 200_000


def main(words: list[str]) -> None:
    """Both pictures, from a run that is there or from a new one."""
    run = Path(words[0]) if words else play()
    if not (run / "curve.png").is_file():
        raise SystemExit(f"pictures: {run} has no curve.png, as a finished demo has; name the folder of one, or none")
    PICTURES.mkdir(exist_ok=True)
    shutil.copyfile(run / "curve.png", PICTURES / "curve.png")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "view.html"
        palaestra("view", str(run), "--out", str(page))
        draw_episode(page, PICTURES / "episode.png")
    for picture in sorted(PICTURES.glob("*.png")):
        size = picture.stat().st_size
        if size > LARGEST:
            raise SystemExit(f"pictures: {picture} has {size:,} bytes; at most {LARGEST:,} are for the front page")
        print(f"{picture.relative_to(ROOT)}: {size:,} bytes; look at it before you commit it")


def play() -> Path:
    """The folder of a new demo."""
    run = ROOT / "runs" / f"pictures-{datetime.now():%Y%m%d-%H%M%S}"
    palaestra("demo", "two-hop", "--seed", "0", "--run", str(run))
    return run


def palaestra(*words: str) -> None:
    """A command, as a user gives it."""
    if status := subprocess.run([sys.executable, "-m", "palaestra", *words], check=False).returncode:
        raise SystemExit(status)


def draw_episode(page: Path, picture: Path) -> None:
    """The chosen episode as the light page shows it, from its heading to the end of its turns and facts."""
    from PIL import Image  # It comes with matplotlib.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-lcd-text"]
        browser = playwright.chromium.launch(executable_path=os.environ["CHROMIUM"], args=flags, timeout=120_000)
        view = browser.new_page(viewport=WINDOW, device_scale_factor=2, color_scheme="light")
        view.goto(page.as_uri())
        place = chosen(json.loads(view.locator("#state").text_content()))
        view.evaluate("place => { location.hash = place }", place)
        view.wait_for_function("() => document.body.dataset.ready === location.hash")
        box = view.locator("section.episode").bounding_box()
        ends = [view.locator(part).last.bounding_box() for part in (".turns", "aside > div.card")]
        box["height"] = max(end["y"] + end["height"] for end in ends) + MARGIN - box["y"]
        shot = Image.open(BytesIO(view.screenshot(clip=box)))
        browser.close()
    print(f"the episode is {place}")
    shot.convert("RGB").quantize(256).save(picture, optimize=True)


def chosen(state: dict) -> str:
    """The address of an episode that succeeded with its tool while another of its group failed.

    There is something to see and something to learn. Of the last step that has one, the first.
    """
    groups: dict[tuple[int, int], list[dict]] = {}
    for episode in state["episodes"]:
        if episode["advantage"] is not None:
            groups.setdefault((-episode["step"], episode["group"]), []).append(episode)
    for _, members in sorted(groups.items()):
        success = [dict(one["parts"]).get("success") for one in members]
        for one, part in zip(members, success, strict=True):
            if 0 in success and part == 1 and one["calls"]:
                return f"#step={one['stage']}&group={one['group']}&episode={one['ordinal']}"
    raise SystemExit("pictures: no group of this run has a success with the tool beside a failure; name another run")


if __name__ == "__main__":
    main(sys.argv[1:])
