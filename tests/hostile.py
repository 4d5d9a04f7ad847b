"""Contracts that nobody should write, made from a seed: too deep, too large, oddly named, cut, torn and mistyped.

for name, content in hostile_files(random.Random(7), 100): ...
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

SOUND = """\
pipeline: {name}
schedule: "@daily"
start: 2026-01-01
topics:
  menu: {{read: table, key: {{item: string}}, value: {{price: "decimal(8,2)", q: int, note: string}}}}
  orders: {{read: stream, key: {{customer: string}}, value: {{item: string, n: int, at: timestamp}}}}
views:
  bills: {{stream: orders, join: {{table: menu, on: item}}, select: {{amount: n * price}}}}
  sums:
    table: menu
    group_by: {{note: note}}
    aggregate: {{n: count(*)}}
    expect:
      - expect_column_values_to_be_between: {{column: n, min_value: 0}}
        on_failure: quarantine
"""

SIZES = (1, 5, 29, 31, 80, 100, 245, 500, 3_000, 30_000, 120_000)
NAMES = (
    *("", "a", "a" * 199, "a" * 200, "a" * 201, "a" * 245, "a" * 251, "a" * 10_000, "menu\n", " menu", "menu\u2028x"),
    *("x__release", "hindcast_maintenance", "runs", "logs", "menu_as_of", "bills_between", "sums__closed_up_to"),
    *(
        "Menu",
        "men ü",
        "menu;drop",
        "../menu",
        "menu/x",
        "null",
        "yes",
        "2026-01-01",
        ".nan",
        "1e400",
        "validFrom",
        "_x",
    ),
    *("\u202emenu", "menu\x00", "\ud800", "{{ menu }}", "${env:PATH}", "%s", "*", "&a", "!!int 1", "<<"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**63, 10**4_200, 1.5, float("nan"), float("inf"), "", "x", "\n", "a" * 50_000, b"\x00\xff"),
    *([], [[]], {}, {"": {}}, [None] * 3, {"a": {"b": {"c": [1]}}}, {1, 2}, {None: 1}, {2.5: 1}, "12:30", "now"),
)

DEEP = (
    *(("(", ")"), ("if(", ", 1, 2)"), ("array(", ")"), ("upper(", ")"), ("case when ", " then 1 end"), ("not ", "")),
    *(
        ("- ", ""),
        ("", "[0]"),
        ("", ".a"),
        ("", "::timestamp"),
        ("transform(array(1), x -> ", ")"),
        ("cast(", " as int)"),
    ),
    *(("", " + q"), ("", " and q"), ("", " || q"), ("", " between 1 and 2"), ("q in (", ")"), ("{", "}"), ("`", "`")),
)
CRONS = (
    *("60 * * * *", "*/0 * * * *", "0 0 31 2 *", "H * * * *", "* * * * * *", "@never", "0 2 * * MON", "1 " * 9_000),
)
PATTERNS = ("(a|a)*b", "(a+)+$", "(.*)*x", "(" * 900, "a{1000}{1000}{1000}", "[a-z]+-.*", "x" * 5_000)


_Sort = Callable[[random.Random, str], str | bytes]


def hostile_files(dice: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield names of files with what is in them; of each sort about as many, sound ones among them."""
    for number in range(count):
        make = _SORTS[number % len(_SORTS)]
        text = make(dice, SOUND.format(name=f"p{number}"))
        yield f"p{number}.yaml", text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _sound(_: random.Random, text: str) -> str:
    return text


def _deep_expression(dice: random.Random, text: str) -> str:
    n = dice.choice(SIZES)
    opening, closing = dice.choice(DEEP)
    expression = f"{opening * n}q{closing * n}"
    place = dice.choice(["    group_by: {note: note}\n", "    table: menu\n    group_by: {note: note}\n"])
    if dice.random() < 0.5:
        return text.replace("n * price", json.dumps(expression))
    return text.replace(place, f"    table: menu\n    where: {json.dumps(expression)}\n", 1)


def _deep_yaml(dice: random.Random, text: str) -> str:
    n = dice.choice(SIZES)
    if dice.random() < 0.3:
        return text + "".join(f"{' ' * depth}a:\n" for depth in range(min(n, 900)))
    opening, closing = dice.choice(
        [("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[", ""), ("{", ""), ("!!a ", "")]
    )
    return text + f"description: {opening * n}x{closing * n}\n"


def _deep_type(dice: random.Random, text: str) -> str:
    n = dice.choice(SIZES)
    opening, closing = dice.choice(
        [("array<", ">"), ("struct<a: ", ">"), ("array<", ""), ("map<int, ", ">"), ("decimal(", ")")]
    )
    return text.replace("q: int", f"q: {json.dumps(f'{opening * n}int{closing * n}')}")


def _large(dice: random.Random, text: str) -> str:
    n = dice.choice(SIZES)
    match dice.randrange(9):
        case 0:
            return text.replace("q: int", ", ".join(f"c{i}: int" for i in range(n)))
        case 1:
            return text + "".join(f"  v{i}: {{table: {f'v{i + 1}' if i + 1 < n else 'menu'}}}\n" for i in range(n))
        case 2:
            return text.replace(
                "topics:\n",
                "topics:\n"
                + "".join(f"  t{i}: {{read: stream, key: {{k: string}}, value: {{v: int}}}}\n" for i in range(n)),
            )
        case 3:
            return text + "      - expect_table_row_count_to_be_between: {min_value: 1}\n" * n
        case 4:
            return text + "".join(
                f"      - expect_column_values_to_be_between: {{column: n, max_value: {i}}}\n" for i in range(n)
            )
        case 5:
            return text + f"description: {'word ' * n}\n"
        case 6:
            return text.replace("n * price", " + ".join(["n * price"] * n))
        case 7:
            return text.replace("amount: n * price", ", ".join(f"c{i}: prise + {i}" for i in range(n)))
        case _:
            return text + "".join(f"unknown{i}: 1\n" for i in range(n))


def _named(dice: random.Random, text: str) -> str:
    name = json.dumps(dice.choice(NAMES))
    was = dice.choice(
        ["pipeline: p", "  menu:", "  bills:", "  sums:", "{item: string}", "amount:", "table: menu", "q: int"]
    )
    now = {
        "pipeline: p": f"pipeline: {name} #",
        "{item: string}": f"{{{name}: string}}",
        "table: menu": f"table: {name}",
        "q: int": f"{name}: int",
        "amount:": f"{name}:",
    }.get(was, f"  {name}:")
    return text.replace(was, now, 1) + (f"  menu_as_of: {{table: {name}}}\n" if dice.random() < 0.2 else "")


def _aliased(dice: random.Random, text: str) -> str:
    n, times = dice.choice((2, 5, 24)), dice.choice((2, 9))
    match dice.randrange(5):
        case 0:
            lines = ["description: x", "a0: &a0 [x, x]"]
            lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * times)}]" for i in range(1, n)]
        case 1:
            lines = ["a0: &a0 {x: 1}"]
            lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * times)}], y{i}: 1}}" for i in range(1, n)]
        case 2:
            lines = ["a: &a [*a]"]
        case 3:
            lines = ["a: &a {<<: *a}"]
        case _:
            lines = ["a: *nothing", f"b: &b {'x' * 100_000}", f"c: [{', '.join(['*b'] * 100)}]"]
    return text + "\n".join(lines) + "\n"


def _torn(dice: random.Random, text: str) -> bytes:
    content = bytearray(text.encode(dice.choice(["utf-8", "utf-8", "utf-16", "utf-8-sig"])))
    for _ in range(dice.choice((1, 3, 30))):
        at = dice.randrange(len(content))
        match dice.randrange(4):
            case 0:
                content[at] = dice.randrange(256)
            case 1:
                del content[at : at + dice.randrange(40)]
            case 2:
                content[at:at] = dice.choice(
                    [b"\x00", b"\xff", b"\t", b"\r", b"'", b'"', b"[", b"*", b"&a ", b"\xed\xa0\x80"]
                )
            case _:
                content[at:at] = content[: dice.randrange(200)]
        content = content or bytearray(b"x")
    return bytes(content)


def _mistyped(dice: random.Random, text: str) -> str:
    told = yaml.safe_load(text)
    for _ in range(dice.choice((1, 1, 2, 5))):
        place = told
        while True:
            key = dice.choice(list(place) if isinstance(place, dict) else range(len(place)))
            below = place[key]
            if not isinstance(below, dict | list) or not below or dice.random() < 0.2:
                break
            place = below
        place[key] = dice.choice(VALUES)
    try:
        return str(yaml.safe_dump(told))
    except ValueError:  # a number that Python does not write
        return text.replace("q: int", f"q: 0x{'f' * 5_000}")


def _scheduled(dice: random.Random, text: str) -> str:
    cron = dice.choice(CRONS)
    text = text.replace('"@daily"', json.dumps(cron)) if dice.random() < 0.5 else text
    text = text.replace("menu: {read", f"menu: {{topic: {'a' * 60}, read", 1)
    return text.replace("{read: stream", f"{{pattern: {json.dumps(dice.choice(PATTERNS))}, read: stream", 1)


_SORTS: tuple[_Sort, ...] = (
    *(_sound, _deep_expression, _deep_yaml, _deep_type, _large, _named, _aliased, _torn, _mistyped, _scheduled),
    *(_deep_expression, _named, _mistyped),
)
