"""A plot as SVG inside a page: text stays text, takes the page's colour, and nothing in it is run or fetched."""

import hashlib
import io
import re
import xml.etree.ElementTree as ET
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from bench.plots.plot import Plot
from bench.plots.style import INK, settings

_SVG, _XLINK = "http://www.w3.org/2000/svg", "{http://www.w3.org/1999/xlink}href"
_GROUP = f"{{{_SVG}}}g"
# Points of the figure to pixels of the page: text of 9 points is then 12 pixels high.
_PIXELS = 1.35
_GEOMETRY = ("d", "x", "y", "width", "height", "transform", "points", "cx", "cy", "r")
_LONG = re.compile(r"-?\d+\.\d{3,}")


def printable(text: str) -> str:
    """Return the text without signs that XML does not allow."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _short(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


def write_svg(figure: Figure) -> str:
    """Return matplotlib's SVG of a figure, without dates and versions."""
    target = io.StringIO()
    with settings():
        # savefig draws twice, once to see whether anything changes the layout.
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(target, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return target.getvalue()


def svg_text(plot: Plot) -> str:
    """Return the plot as an ``svg`` element for a page.

    Ids begin with a hash of the plot's name, so several plots can be in one page; text, axes and grid are drawn in
    ``currentColor`` on no background. Equal plots give equal text.
    """
    root = ET.fromstring(write_svg(plot.draw()))
    prefix = "p" + hashlib.sha256(plot.name.encode()).hexdigest()[:8]
    _renamed(root, prefix)
    for element in root.iter():
        _tidied(element)
    _flattened(root)
    for group in root.iter(_GROUP):
        _hoisted(group)
    _headed(root, plot, prefix)
    ET.register_namespace("", _SVG)
    return ET.tostring(root, encoding="unicode")


def _renamed(root: ET.Element, prefix: str) -> None:
    """Give each id that is referred to a short one of this plot's own; drop the others."""
    text = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(_referred(root)))}
    for element in root.iter():
        if (name := element.attrib.pop("id", None)) in text:
            element.set("id", text[name])
        if (target := element.attrib.pop(_XLINK, None)) is not None:
            element.set("href", f"#{text[target[1:]]}")
        for key, value in element.attrib.items():
            if "url(#" in value:
                element.set(key, re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{text[found[1]]})", value))


def _referred(root: ET.Element) -> set[str]:
    found = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            found.update(re.findall(r"url\(#([^)]+)\)", value))
            if key == _XLINK:
                found.add(value[1:])
    return found


def _tidied(element: ET.Element) -> None:
    """Write colours of ink as the page's, numbers with two digits, fonts as the page's."""
    for key in _GEOMETRY:
        if key in element.attrib and element.tag != f"{{{_SVG}}}svg":
            element.set(key, _LONG.sub(_short, element.attrib[key]).replace(" \n", " ").replace("\n", " ").strip())
    if (style := element.attrib.get("style")) is not None:
        style = re.sub(r" ?font-family: [^;]*;", "", style)
        if element.tag == f"{{{_SVG}}}text":
            style = style.replace(f"; fill: {INK}", "")  # inherited, and most elements are text
        element.set("style", _LONG.sub(_short, style).replace(INK, "currentColor"))
    if re.match(r"rotate\(-?0 ", element.attrib.get("transform", "")):
        del element.attrib["transform"]
    for key in ("fill", "stroke"):
        if element.attrib.get(key) == INK:
            element.set(key, "currentColor")
    if element.tag != f"{{{_SVG}}}text" and element.text is not None and not element.text.strip():
        element.text = None
    if element.tail is not None and not element.tail.strip():
        element.tail = None


def _flattened(element: ET.Element) -> None:
    """Take out groups that say nothing, and shapes that are not seen."""
    children: list[ET.Element] = []
    for child in element:
        _flattened(child)
        if child.tag == _GROUP and not child.attrib:
            children += child
        elif child.attrib.get("style") != "fill: none":
            children.append(child)
    element[:] = children


def _hoisted(group: ET.Element) -> None:
    """Give a style that all children share to the group alone."""
    styles = {child.attrib.get("style") for child in group}
    if len(group) > 2 and len(styles) == 1 and None not in styles and "style" not in group.attrib:
        if any(child.tag != f"{{{_SVG}}}use" for child in group):
            return
        group.set("style", styles.pop() or "")
        for child in group:
            del child.attrib["style"]


def _headed(root: ET.Element, plot: Plot, prefix: str) -> None:
    """Make the element scale with the page, and say in words what it shows."""
    for name in ("metadata", "defs"):
        for child in root.findall(f"{{{_SVG}}}{name}"):
            if name == "metadata" or all(part.tag == f"{{{_SVG}}}style" for part in child):
                root.remove(child)
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    box = f"0 0 {width:g} {height:g}"
    root.attrib.clear()
    root.attrib |= {
        "viewBox": box,
        "fill": "currentColor",
        "width": f"{width * _PIXELS:.0f}",
        "height": f"{height * _PIXELS:.0f}",
        "role": "img",
        "aria-labelledby": f"{prefix}-title {prefix}-desc",
        "style": "max-width: 100%; height: auto; font-family: sans-serif; stroke-linejoin: round; stroke-linecap: butt",
    }
    for number, (name, text) in enumerate((("title", plot.title), ("desc", plot.caption))):
        element = ET.Element(f"{{{_SVG}}}{name}", {"id": f"{prefix}-{name}"})
        element.text = printable(text)
        root.insert(number, element)
