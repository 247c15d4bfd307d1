"""Text from outside, written so that a page shows it and never acts on it.

The templates escape everything (jinja2's autoescape). Escaping leaves what HTML has no sign for: control characters,
colours of a terminal, marks that turn the direction of text, halves of surrogate pairs. Those are made visible here.
"""

import html
import json
import re
from typing import Any

from markupsafe import Markup

# Colours and other attributes of a terminal. Any other sequence stays, its ESC shown as a sign.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
# Left-to-right and right-to-left marks and overrides can make a line read as what it is not.
_TURNING = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_ISSUE = re.compile(r"\b([A-Za-z0-9][\w.-]{0,38}/[\w.-]{1,100})#(\d{1,7})\b")


def inert(text: str) -> str:
    """Return ``text`` with a visible sign for each character that would act or that no page can hold."""
    return _UNSHOWN.sub(_sign, _COLOURS.sub("", text.replace("\r\n", "\n")))


def _sign(found: re.Match[str]) -> str:
    number = ord(found.group())
    if number < 0x20:
        return chr(0x2400 + number)
    if number in _TURNING:
        return f"\\u{number:04x}"
    return "\u2421" if number == 0x7F else "\ufffd"


def content(text: str) -> Markup:
    """Escape ``text`` for the content of an element, never for an attribute: quotes, many in JSON, stay as they are."""
    return Markup(html.escape(inert(text), quote=False))


def json_content(value: Any) -> Markup:
    """Write ``value`` as JSON for the content of an element: one line per key, what is below it on that line."""
    if not isinstance(value, dict) or not value:
        return content(json.dumps(value, ensure_ascii=False))
    lines = [f" {json.dumps(key, ensure_ascii=False)}: {_one_line(item)}" for key, item in value.items()]
    return content("{\n" + ",\n".join(lines) + "\n}")


def _one_line(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(text) < 80:
        return text
    return json.dumps(value, ensure_ascii=False, indent=1).replace("\n", "\n ")


def with_links(sentence: str) -> Markup:
    """Escape ``sentence`` for the content of an element; issues, as ``owner/name#1``, become links to GitHub."""
    parts, end = [], 0
    for found in _ISSUE.finditer(sentence):
        repository, number = found.groups()
        parts.append(content(sentence[end : found.start()]))
        parts.append(
            Markup('<a href="https://github.com/{}/issues/{}" rel="noreferrer">{}</a>').format(
                repository, number, found.group()
            )
        )
        end = found.end()
    return Markup("").join([*parts, content(sentence[end:])])
