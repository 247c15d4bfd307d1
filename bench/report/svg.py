"""Drawings inside the page: one name for each thing, and nothing in them that could act."""

import re

from markupsafe import Markup

_ID = re.compile(r'\sid="([^"]*)"')
_USE = re.compile(r'((?:xlink:)?href="|url\()#([^")]+)')


def embedded(svg: str, name: str) -> Markup:
    """Return ``svg`` as part of a page: without prologue, style sheet and metadata, its ids under ``name``.

    Ids that nothing refers to are left out, so that two drawings never share one. The page's policy
    forbids what is left to act, scripts and addresses alike.
    """
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    used = {found[2] for found in _USE.finditer(body)}
    body = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = _USE.sub(lambda found: f"{found[1]}#{name}-{found[2]}", body)
    body = re.sub(r">\s+<", "><", body)
    return Markup(body)
