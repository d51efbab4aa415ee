"""Scripts that solve tasks of MiniWoB from the numbered text alone, and act by its numbers alone.

A script is a generator: it is given what is seen, yields actions such as ("click", 3), and is sent what is seen then.
"""

import re
from calendar import month_name
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import pairwise
from math import dist
from typing import Any

WIDTH = 100
"""Of a line; what is longer was wrapped at a blank."""
Script = Generator[tuple[Any, ...], "Seen", None]
ELEMENT = re.compile(r"(?<!\\)\[(\d+):([\w-]+) ?((?:[^\[\]]|\\\[)*)\]")


@dataclass(frozen=True)
class Element:
    number: int
    kind: str
    rest: str

    @property
    def name(self) -> str:
        return re.split(r' ?= "| ?\((?:un)?checked| ?\((?:selected|open|closed|disabled)', self.rest)[0].strip()

    @property
    def click(self) -> tuple[str, int]:
        return ("click", self.number)


class Seen:
    """A page as an agent reads it."""

    def __init__(self, told: str) -> None:
        told = re.sub(r"\A(?:.*\n)?http://.*\n(?:\(.*\)\n)?(?:lines .* of .*\n)?", "", told)
        self.lines: list[str] = []
        last = ""
        for line in told.split("\n"):
            ended = len(self.lines) == 1 and last.endswith(".")  # The goal is a sentence.
            if last and line and not ended and len(last) + 1 + len(line.split(" ")[0]) > WIDTH:
                self.lines[-1] += f" {line}"
            else:
                self.lines.append(line)
            last = line
        self.text = "\n".join(self.lines)
        self.goal = self.lines[0] if self.lines else ""
        self.elements = [Element(int(n), kind, rest) for n, kind, rest in ELEMENT.findall(self.text)]

    def of(self, *kinds: str) -> list[Element]:
        return [one for one in self.elements if one.kind in kinds]

    @property
    def fields(self) -> list[Element]:
        return self.of("field", "password", "number", "date", "time", "textarea")

    def named(self, name: str, *kinds: str) -> Element:
        found = [one for one in self.elements if one.name == name and (not kinds or one.kind in kinds)]
        if not found:
            raise LookupError(f"no {name!r} in {self.text}")
        return found[0]

    def has(self, name: str, *kinds: str) -> bool:
        return any(one.name == name and (not kinds or one.kind in kinds) for one in self.elements)

    @property
    def quoted(self) -> list[str]:
        return re.findall(r'"(.*?)"', self.goal)

    @property
    def submit(self) -> tuple[str, int]:
        return next(one for one in self.elements if re.fullmatch(r"(?i)submit|login|search|ok", one.name)).click


def press_named(seen: Seen) -> Script:
    yield seen.named(seen.quoted[0]).click


def press_first(seen: Seen) -> Script:
    yield seen.of("button")[0].click


def press_one(seen: Seen) -> Script:
    yield seen.named("ONE").click


def press_two(seen: Seen) -> Script:
    seen = yield seen.named("ONE").click
    yield seen.named("TWO").click


def close_dialog(seen: Seen) -> Script:
    wanted = seen.quoted[0]
    yield seen.named("Close" if wanted == "x" else wanted, "button").click


def tick(seen: Seen) -> Script:
    wanted = re.search(r"Select (.*?) (?:and click|from)", seen.goal)
    assert wanted
    for name in wanted[1].split(", "):
        if name != "nothing":
            seen = yield seen.named(name, "checkbox", "radio").click
    yield seen.submit


def pick_tab(seen: Seen) -> Script:
    wanted = re.search(r"Tab #\d", seen.goal)
    assert wanted
    yield seen.named(wanted[0], "link").click


def search_tabs(seen: Seen) -> Script:
    wanted = seen.quoted[0]
    for tab in [one.name for one in seen.of("link") if re.fullmatch(r"(Tab #)?\d", one.name)]:
        seen = yield seen.named(tab, "link").click
        if seen.has(wanted, "clickable"):
            yield seen.named(wanted, "clickable").click


def open_section(seen: Seen) -> Script:
    seen = yield seen.of("tab")[0].click
    for _ in range(3):
        if seen.has("Submit", "button"):
            break
        seen = yield ("look",)
    yield seen.submit


def search_sections(seen: Seen) -> Script:
    wanted = seen.quoted[0]
    for name in [one.name for one in seen.of("tab") if one.name.startswith("Section")]:
        seen = yield seen.named(name, "tab").click
        seen = yield ("look",)
        if seen.has(wanted, "clickable"):
            yield seen.named(wanted, "clickable").click


def pick_widget(seen: Seen) -> Script:
    wanted = seen.quoted[0]
    yield seen.of({"text": "field"}.get(wanted, wanted))[0].click


def write_quoted(seen: Seen) -> Script:
    text = seen.quoted[0]
    if "upper case" in seen.goal:
        text = text.upper()
    if "lower case" in seen.goal:
        text = text.lower()
    for field in seen.fields:
        seen = yield ("type", field.number, text)
    yield seen.submit


def write_date(seen: Seen) -> Script:
    month, day, year = re.findall(r"\d+", seen.goal)[:3]
    seen = yield ("type", seen.of("date")[0].number, f"{year}-{month}-{day}")
    yield seen.submit


def write_time(seen: Seen) -> Script:
    found = re.search(r"(\d+):(\d+) ([AP]M)", seen.goal)
    assert found
    hour = int(found[1]) % 12 + 12 * (found[3] == "PM")
    seen = yield ("type", seen.of("time")[0].number, f"{hour:02}:{found[2]}")
    yield seen.submit


def log_in(seen: Seen) -> Script:
    for at, text in enumerate(seen.quoted):
        if seen.has("Cancel"):
            seen = yield seen.named("Cancel").click
        seen = yield ("type", seen.of("field", "password")[at].number, text)
    if seen.has("Cancel"):
        seen = yield seen.named("Cancel").click
    if any('= ""' in one.rest for one in seen.of("field", "password")):
        yield from log_in(seen)
        return
    yield seen.submit


def focus(seen: Seen) -> Script:
    found = re.search(r"(\d)\w\w input", seen.goal)
    yield seen.fields[int(found[1]) - 1 if found else 0].click


def choose(seen: Seen) -> Script:
    wanted = re.search(r"Select (.*) from the", seen.goal)
    assert wanted
    several = "scroll list" in seen.goal
    for option in wanted[1].split(", ") if several else [wanted[1]]:
        seen = yield ("select", seen.of("select")[0].number, option)
    yield seen.submit


def pick_date(seen: Seen) -> Script:
    month, day, year = (int(part) for part in re.findall(r"\d+", seen.goal)[:3])
    names = list(month_name)[1:]
    seen = yield seen.of("field")[0].click
    for _ in range(12):
        found = re.search(rf"({'|'.join(names)})\W+(\d{{4}})", seen.text)
        assert found, seen.text
        at = names.index(found[1]) + 1 + 12 * (int(found[2]) - year)
        if at == month:
            break
        seen = yield seen.named("Prev" if at > month else "Next").click
    seen = yield seen.named(str(day), "link").click
    yield seen.submit


def calculate(seen: Seen) -> Script:
    a, sign, b = re.findall(r"(\d+) ([-+x]) (\d+)", seen.text)[0]
    result = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign]
    seen = yield ("type", seen.fields[0].number, str(result))
    yield seen.submit


def solve_equation(seen: Seen) -> Script:
    equation = next(line for line in seen.lines if re.search(r"= -?\d+$", line) and "x" in line)
    left, right = equation.split(" = ")
    value = next(
        x
        for x in range(-500, 500)
        if sum(
            (-1 if sign == "-" else 1) * (x if term == "x" else int(term))
            for sign, term in re.findall(r"([-+]?) ?(x|\d+)", left)
        )
        == int(right)
    )
    seen = yield ("type", seen.fields[0].number, str(value))
    yield seen.submit


def read_table(seen: Seen) -> Script:
    rows = dict(line.split(" | ", 1) for line in seen.lines if " | " in line)
    wanted = re.search(r"value of (.*?) into", seen.goal)
    labels = [wanted[1]] if wanted else [line.rstrip(":") for line in seen.lines if line.endswith(":")]
    for field, label in zip(seen.fields, labels, strict=True):
        seen = yield ("type", field.number, rows[label])
    yield seen.submit


def find_word(seen: Seen) -> Script:
    place = int(re.findall(r"(\d+)\w\w word", seen.goal)[0])
    word = " ".join(seen.lines[1:]).split("[")[0].split()[place - 1]
    seen = yield ("type", seen.fields[0].number, re.sub(r"\W", "", word))
    yield seen.submit


def copy_letters(seen: Seen) -> Script:
    seen = yield ("type", seen.fields[0].number, seen.lines[1])
    yield seen.submit


def paste(seen: Seen) -> Script:
    found = re.search(r"(\d)\w\w text area", seen.goal)
    areas = seen.of("textarea")
    area = areas[int(found[1]) - 1 if found else 0]
    text = area.rest.split('= "')[1].rstrip('"')
    if text.endswith("..."):
        text = seen.text.split(f"[{area.number}:")[1].split("] ")[1].split(" [")[0].split("\n")[0]
    if "last word" in seen.goal:
        text = re.sub(r"\W", "", text.split()[-1])
    seen = yield ("type", seen.of("field")[0].number, text)
    yield seen.submit


def open_tree(seen: Seen) -> Script:
    wanted, opened = seen.quoted[0], set[str]()
    for _ in range(20):
        if seen.has(wanted):
            yield seen.named(wanted).click
        here = seen.elements
        folders = [
            (box, name)
            for box, name in pairwise(here)
            if "expandable-hitarea" in box.name.split() and name.name not in opened
        ]
        if not folders:
            break
        opened.add(folders[0][1].name)
        seen = yield folders[0][0].click
        if not seen.has(wanted):
            seen = yield ("look",)


def complete(seen: Seen) -> Script:
    start, end = (*seen.quoted, "")[:2]
    seen = yield ("type", seen.of("field")[0].number, start)
    for _ in range(5):
        found = [
            one
            for one in seen.elements
            if one.kind not in ("field", "button") and one.name.startswith(start) and one.name.endswith(end)
        ]
        if found:
            break
        seen = yield ("look",)
    seen = yield found[0].click
    yield seen.submit


def _row(seen: Seen, name: str) -> list[Element]:
    """The elements of a mail's row."""
    tail = seen.text.split(f"\n{name}\n", 1)
    before = [Element(int(n), kind, rest) for n, kind, rest in ELEMENT.findall(tail[0])]
    return [before[-1], *(Element(int(n), kind, rest) for n, kind, rest in ELEMENT.findall(tail[1])[:2])]


def mail(seen: Seen) -> Script:
    who = re.search(r"email by (\w+)", seen.goal)
    assert who
    row, trash, star = _row(seen, who[1])
    if "trash" in seen.goal or "delete" in seen.goal:
        yield trash.click
    elif "star" in seen.goal:
        yield star.click
    else:
        goal = seen.goal
        seen = yield row.click
        if "reply" in goal:
            text = re.findall(r'"(.*?)"', goal)[0]
            seen = yield next(one for one in seen.elements if "reply" in one.rest.lower()).click
            seen = yield ("type", seen.of("textarea")[0].number, text)
        else:
            to = re.search(r"to (\w+)\.", goal)
            assert to
            seen = yield next(one for one in seen.elements if "forward" in one.rest.lower()).click
            seen = yield ("type", seen.of("field", "textarea")[0].number, to[1])
        yield next(one for one in seen.elements if "send" in one.rest.lower()).click


def search_web(seen: Seen) -> Script:
    text, place = seen.quoted[0], int(re.findall(r"(\d+)\w\w search", seen.goal)[0])
    seen = yield ("type", seen.of("field")[0].number, text)
    seen = yield seen.named("Search").click
    while True:
        results = [one for one in seen.of("link", "clickable") if not re.fullmatch(r"[\d<>]*", one.name)]
        if place <= len(results):
            yield results[place - 1].click
            return
        place -= len(results)
        seen = yield seen.named(">").click


def look_up(seen: Seen) -> Script:
    found = re.search(r"Find (\w+) in the contact book and click on their (.*?)\.", seen.goal)
    assert found
    for _ in range(12):
        if f"## {found[1]}" in seen.text:
            what = found[2].split()[0].capitalize()
            place = re.search(rf"{what}[^:\n]*: \[(\d+):", seen.text)
            assert place, seen.text
            yield ("click", int(place[1]))
            return
        seen = yield seen.named(">").click


def name_shape(seen: Seen) -> Script:
    drawn = re.search(r"[\[(](?:\d+:)?(\w+) ([^ \]]+)", seen.text)
    assert drawn
    kind = {"rect": "Rectangle", "circle": "Circle", "ellipse": "Circle", "polygon": "Triangle"}.get(drawn[1])
    if kind is None:
        kind = "Number" if drawn[2].isdigit() else "Letter"
    yield seen.named(kind, "button").click


def _place(element: Element) -> tuple[int, int]:
    found = re.search(r"at (-?\d+),(-?\d+)", element.rest)
    assert found
    return int(found[1]), int(found[2])


def hit_point(seen: Seen) -> Script:
    x, y = (int(part) for part in re.findall(r"\((-?\d+),(-?\d+)\)", seen.goal)[0])
    at = {_place(one): one for one in seen.of("circle")}
    columns, rows = sorted({x for x, _ in at}), sorted({y for _, y in at})
    yield at[columns[x + 2], rows[2 - y]].click


def guess(seen: Seen) -> Script:
    low, high = 0, 9
    while True:
        middle = (low + high) // 2
        seen = yield ("type", seen.of("number")[0].number, str(middle))
        seen = yield seen.submit
        if "higher" in seen.text:
            low = middle + 1
        else:
            high = middle - 1


def odd_or_even(seen: Seen) -> Script:
    for at, line in enumerate(seen.lines):
        if re.fullmatch(r"-?\d+", line):
            both = seen.lines[at - 1] + seen.lines[at + 1]
            odd, even = (int(found) for found in re.findall(r"\[(\d+):button (?:Odd|Even)", both))
            seen = yield ("click", odd if int(line) % 2 else even)
    yield seen.submit


def pick_greatest(seen: Seen) -> Script:
    cards = [one for one in seen.of("clickable") if re.fullmatch(r"-?\d+", one.name)]
    seen = yield max(cards, key=lambda one: int(one.name)).click
    yield seen.submit


def search_films(seen: Seen) -> Script:
    found = re.search(r"Search for (\w+) movies (.*)", seen.goal)
    assert found
    wanted = {"genre": found[1]}
    for key, pattern in (("director", r"directed by (\w+)"), ("year", r"year (\d+)")):
        part = re.search(pattern, seen.goal)
        assert part
        wanted[key] = part[1]
    flat = " ".join(seen.lines[1:])
    for key, text in wanted.items():
        before = re.split(rf"(?i){key}\b", flat, maxsplit=1)[1]
        number = int(re.findall(r"\[(\d+):field", before)[0])
        seen = yield ("type", number, text)
    yield next(one for one in seen.elements if one.name in ("Search", "Submit")).click


def radio_and_text(seen: Seen) -> Script:
    radio, field = (int(part) for part in re.findall(r"(\d)(?:st|nd|rd)", seen.goal))
    seen = yield seen.of("radio")[radio - 1].click
    seen = yield ("type", seen.of("field")[field - 1].number, seen.quoted[0])
    yield seen.submit


def spin(seen: Seen) -> Script:
    wanted = int(re.findall(r"-?\d+", seen.goal)[0])
    seen = yield seen.of("field")[0].click  # The page refuses digits; the arrow keys count.
    for _ in range(abs(wanted)):
        seen = yield ("press", "ArrowUp" if wanted > 0 else "ArrowDown")
    yield seen.submit


def generate(seen: Seen) -> Script:
    for _ in range(20):
        seen = yield seen.named("Generate").click
        number = next((int(line) for line in seen.lines[1:] if re.fullmatch(r"-?\d+", line)), None)
        assert number is not None, seen.text
        limit = re.search(r"(less|greater) than (-?\d+)", seen.goal)
        fits = number % 2 == 0 if " even " in seen.goal else number % 2 == 1 if " odd " in seen.goal else False
        if limit:
            fits = number < int(limit[2]) if limit[1] == "less" else number > int(limit[2])
        if fits:
            break
    yield seen.submit


def buy(seen: Seen) -> Script:
    offers = []
    for hours, minutes, number, price in re.findall(r"(\d+)h (\d+)m\n\[(\d+):button Book for \$(\d+)", seen.text):
        offers.append((60 * int(hours) + int(minutes), int(price), int(number)))
    key = 1 if "price" in seen.goal or "cheap" in seen.goal or "expensive" in seen.goal else 0
    least = re.search(r"shortest|cheapest|lowest", seen.goal)
    yield ("click", (min if least else max)(offers, key=lambda offer: offer[key])[2])


def climb(seen: Seen) -> Script:
    texts = sorted(seen.of("text"), key=lambda one: int(one.name.split()[0]))
    places = [_place(one) for one in texts]
    seen = yield texts[0].click
    for place in places[1:]:  # The numbers are covered now; each cover is near the place of its number.
        seen = yield min(seen.of("rect"), key=lambda one: dist(place, _place(one))).click


def act_on_post(seen: Seen) -> Script:
    found = re.search(r'user (@\S+), click on the "(.*?)" button', seen.goal)
    assert found
    user, action = found.groups()

    def below(seen: Seen) -> list[Element]:
        return Seen(seen.text.split(f" {user} ", 1)[1]).elements

    if action in ("Reply", "Retweet", "Like"):
        yield next(one for one in below(seen) if one.name == action.lower()).click
    else:
        seen = yield next(one for one in below(seen) if one.name == "more").click
        yield next(one for one in below(seen) if one.name.split(" @")[0] == action).click


def delete_file(seen: Seen) -> Script:
    found = re.search(r"extension (?:\.)(\S+)", seen.goal)
    ending = found[1] if found else ""
    field = seen.of("field")[0].number
    seen = yield ("type", field, "ls")
    seen = yield ("press", "Enter")
    listed = re.findall(r"user\$ ls\s+(.*?)\s+user\$", " ".join(seen.lines))[-1].split()
    # The page takes a name for one with the ending only where that is found at the end first.
    fits = (lambda name: name.find(ending) == len(name) - len(ending)) if ending else (lambda name: "." not in name)
    seen = yield ("type", field, f"rm {next(filter(fits, listed))}")
    yield ("press", "Enter")


ORACLES: dict[str, Callable[[Seen], Script]] = {
    "click-test": press_first,
    "click-test-2": press_one,
    "click-test-transfer": press_one,
    "click-button": press_named,
    "click-link": press_named,
    "unicode-test": press_named,
    "click-dialog": close_dialog,
    "click-dialog-2": close_dialog,
    "click-checkboxes": tick,
    "click-checkboxes-large": tick,
    "click-checkboxes-transfer": tick,
    "click-option": tick,
    "click-tab": pick_tab,
    "click-tab-2": search_tabs,
    "click-tab-2-easy": search_tabs,
    "click-tab-2-medium": search_tabs,
    "click-tab-2-hard": search_tabs,
    "click-collapsible": open_section,
    "click-collapsible-nodelay": open_section,
    "click-collapsible-2": search_sections,
    "click-collapsible-2-nodelay": search_sections,
    "click-button-sequence": press_two,
    "click-widget": pick_widget,
    "click-scroll-list": choose,
    "enter-text": write_quoted,
    "enter-text-2": write_quoted,
    "enter-text-dynamic": write_quoted,
    "enter-password": write_quoted,
    "enter-date": write_date,
    "enter-time": write_time,
    "login-user": log_in,
    "login-user-popup": log_in,
    "focus-text": focus,
    "focus-text-2": focus,
    "choose-list": choose,
    "choose-date": pick_date,
    "choose-date-nodelay": pick_date,
    "choose-date-easy": pick_date,
    "choose-date-medium": pick_date,
    "simple-arithmetic": calculate,
    "simple-algebra": solve_equation,
    "read-table": read_table,
    "read-table-2": read_table,
    "find-word": find_word,
    "text-transform": copy_letters,
    "copy-paste": paste,
    "copy-paste-2": paste,
    "scroll-text": paste,
    "navigate-tree": open_tree,
    "use-autocomplete": complete,
    "use-autocomplete-nodelay": complete,
    "use-spinner": spin,
    "email-inbox": mail,
    "email-inbox-delete": mail,
    "email-inbox-noscroll": mail,
    "email-inbox-important": mail,
    "email-inbox-reply": mail,
    "email-inbox-forward": mail,
    "email-inbox-star-reply": mail,
    "search-engine": search_web,
    "phone-book": look_up,
    "identify-shape": name_shape,
    "grid-coordinate": hit_point,
    "guess-number": guess,
    "odd-or-even": odd_or_even,
    "find-greatest": pick_greatest,
    "multi-orderings": search_films,
    "form-sequence-2": radio_and_text,
    "generate-number": generate,
    "buy-ticket": buy,
    "ascending-numbers": climb,
    "social-media": act_on_post,
    "terminal": delete_file,
}
