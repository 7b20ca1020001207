"""A sheet as SVG: text is text, in a font that the file carries with it."""

import base64
from html import escape
from itertools import groupby

from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.sheet import Block, Box, Line, Marks, Points, Sheet, Words

_FALLBACK = f"'{fonts.FAMILY}', Verdana, sans-serif"  # Verdana is as wide, where embedded fonts are not read


def to_svg(sheet: Sheet) -> bytes:
    """The file."""
    width, height = _number(sheet.width), _number(sheet.height)
    cuts: dict[Box, str] = {}
    outlines: dict[str, str] = {}
    body = []
    for inside, items in groupby(sheet.items, key=lambda item: getattr(item, "inside", None)):
        drawn = "\n".join(_draw(item, outlines) for item in items)
        if inside is None:
            body.append(drawn)
        else:
            name = cuts.setdefault(inside, f"cut{len(cuts)}")
            body.append(f'<g clip-path="url(#{name})">\n{drawn}\n</g>')
    defined = [
        f'<clipPath id="{name}"><rect x="{_number(box.left)}" y="{_number(box.top)}" width="{_number(box.width)}" '
        f'height="{_number(box.height)}"/></clipPath>'
        for box, name in cuts.items()
    ]
    defined += [f'<path id="{name}" d="{outline}"/>' for outline, name in outlines.items()]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="{width}pt" '
        f'height="{height}pt" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(sheet.title, quote=False)}</title>",
        f"<style>{_font_faces(sheet)}text{{font-family:{_FALLBACK}}}</style>",
        f"<defs>{''.join(defined)}</defs>",
        f'<rect width="{width}" height="{height}" fill="{sheet.background}"/>',
        *body,
        "</svg>\n",
    ]).encode()  # fmt: skip


def _font_faces(sheet: Sheet) -> str:
    faces = []
    for bold, weight in ((False, "normal"), (True, "bold")):
        text = "".join(item.text for item in sheet.items if isinstance(item, Words) and item.bold is bold)
        if text:
            data = base64.b64encode(fonts.part(text, bold).woff).decode()
            source = f"src:url(data:font/woff;base64,{data})"
            faces.append(f"@font-face{{font-family:'{fonts.FAMILY}';font-weight:{weight};{source}}}\n")
    return "".join(faces)


def _draw(item: Line | Marks | Block | Words, outlines: dict[str, str]) -> str:
    if isinstance(item, Words):
        style = f' text-anchor="{item.anchor}"' * (item.anchor != "start") + ' font-weight="bold"' * item.bold
        place = f'x="{_number(item.x)}" y="{_number(item.y)}" font-size="{_number(item.size)}"'
        return f'<text {place} fill="{item.color}"{style}>{escape(item.text, quote=False)}</text>'
    if isinstance(item, Block):
        left, top = _number(item.box.left), _number(item.box.top)
        size = f'width="{_number(item.box.width)}" height="{_number(item.box.height)}"'
        return f'<rect x="{left}" y="{top}" {size} fill="{item.color}"/>'
    if isinstance(item, Line):
        dashes = f' stroke-dasharray="{" ".join(map(_number, item.dashes))}"' if item.dashes else ""
        stroke = f'stroke="{item.color}" stroke-width="{_number(item.width)}" stroke-linejoin="round"{dashes}'
        return f'<path d="{_path(item.points)}" fill="none" {stroke}/>'
    name = outlines.setdefault(f"{_path(item.outline)}Z", f"mark{len(outlines)}")
    style = f'fill="{item.face or "none"}" stroke="{item.edge}" stroke-width="{_number(item.edge_width)}"'
    uses = [f'<use xlink:href="#{name}" x="{_number(x)}" y="{_number(y)}"/>' for x, y in item.places.tolist()]
    return f"<g {style}>{''.join(uses)}</g>"


def _path(points: Points) -> str:
    return "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points.tolist())


def _number(value: float) -> str:
    return f"{round(value, 2) + 0.0:g}"
