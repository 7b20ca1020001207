"""A sheet as PDF: one page as large as the sheet, text that can be searched and copied, fonts embedded as TrueType."""

import zlib
from itertools import groupby

from slotnorm.report.drawing import fonts
from slotnorm.report.drawing.sheet import Block, Line, Marks, Points, Sheet, Words

_NAMES = {False: "F1", True: "F2"}  # of fonts in the page, by whether they are bold


def to_pdf(sheet: Sheet) -> bytes:
    """The file."""
    parts = {
        bold: fonts.part(text, bold)
        for bold in (False, True)
        if (text := "".join(item.text for item in sheet.items if isinstance(item, Words) and item.bold is bold))
    }
    file = _File()
    used = " ".join(f"/{_NAMES[bold]} {_add_font(file, part, bold)} 0 R" for bold, part in parts.items())
    content = file.stream(_content(sheet, parts).encode("ascii"))
    page, pages = content + 1, content + 2
    box = f"/MediaBox [0 0 {_number(sheet.width)} {_number(sheet.height)}]"
    file.add(f"<< /Type /Page /Parent {pages} 0 R {box} /Contents {content} 0 R /Resources << /Font << {used} >> >> >>")
    file.add(f"<< /Type /Pages /Kids [{page} 0 R] /Count 1 >>")
    catalog = file.add(f"<< /Type /Catalog /Pages {pages} 0 R >>")
    marked = "\ufeff" + sheet.title  # the mark says how it is encoded
    title = file.add(f"<< /Title <{marked.encode('utf-16-be').hex()}> >>")
    return file.finished(catalog, title)


class _File:
    """The objects of a PDF file, numbered from 1."""

    def __init__(self) -> None:
        self.content = bytearray(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")  # the second line says that it is not text
        self.places: list[int] = []

    def add(self, body: str | bytes) -> int:
        """Add an object and give its number."""
        self.places.append(len(self.content))
        self.content += f"{len(self.places)} 0 obj\n".encode() + (body.encode() if isinstance(body, str) else body)
        self.content += b"\nendobj\n"
        return len(self.places)

    def stream(self, data: bytes, facts: str = "") -> int:
        """Add a compressed stream."""
        packed = zlib.compress(data, 6)
        head = f"<< /Length {len(packed)} /Filter /FlateDecode {facts}>>\nstream\n".encode()
        return self.add(head + packed + b"\nendstream")

    def finished(self, catalog: int, info: int) -> bytes:
        start, count = len(self.content), len(self.places) + 1
        table = ["0000000000 65535 f \n", *(f"{place:010d} 00000 n \n" for place in self.places)]
        trailer = f"trailer\n<< /Size {count} /Root {catalog} 0 R /Info {info} 0 R >>\nstartxref\n{start}\n%%EOF\n"
        return bytes(self.content) + f"xref\n0 {count}\n{''.join(table)}{trailer}".encode()


def _add_font(file: _File, part: fonts.Part, bold: bool) -> int:
    """A font with the letters of `part`; letters are written as their numbers in it."""
    name = f"SLOTNM+DejaVuSans{'-Bold' * bold}"
    data = file.stream(part.truetype, f"/Length1 {len(part.truetype)} ")
    box = " ".join(map(str, part.box))
    descriptor = file.add(
        f"<< /Type /FontDescriptor /FontName /{name} /Flags 4 /FontBBox [{box}] /ItalicAngle 0 /Ascent {part.box[3]} "
        f"/Descent {part.box[1]} /CapHeight 729 /StemV {140 if bold else 80} /FontFile2 {data} 0 R >>"
    )
    widths = " ".join(map(str, part.widths))
    letters = file.add(
        f"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /{name} /CIDToGIDMap /Identity /DW 600 /W [0 [{widths}]] "
        f"/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >> /FontDescriptor {descriptor} 0 R >>"
    )
    meaning = file.stream(_meaning(part).encode("ascii"))
    return file.add(
        f"<< /Type /Font /Subtype /Type0 /BaseFont /{name} /Encoding /Identity-H /DescendantFonts [{letters} 0 R] "
        f"/ToUnicode {meaning} 0 R >>"
    )


def _meaning(part: fonts.Part) -> str:
    """Which letter a number stands for, so that words can be searched and copied."""
    pairs = [f"<{number:04x}> <{letter.encode('utf-16-be').hex()}>" for letter, number in part.glyphs.items()]
    blocks = [pairs[start : start + 100] for start in range(0, len(pairs), 100)]  # a block holds at most 100
    listed = "\n".join("\n".join([f"{len(block)} beginbfchar", *block, "endbfchar"]) for block in blocks)
    return (
        "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n"
        "/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def\n"
        "/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n"
        f"1 begincodespacerange\n<0000> <ffff>\nendcodespacerange\n{listed}\n"
        "endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n"
    )


def _content(sheet: Sheet, parts: dict[bool, fonts.Part]) -> str:
    """The page's operators, y downward as on the sheet."""
    lines = [f"1 0 0 -1 0 {_number(sheet.height)} cm 1 j"]
    lines.append(f"{_color(sheet.background)} rg 0 0 {_number(sheet.width)} {_number(sheet.height)} re f")
    for inside, items in groupby(sheet.items, key=lambda item: getattr(item, "inside", None)):
        if inside is not None:
            corner, size = (inside.left, inside.top), (inside.width, inside.height)
            lines.append(f"q {' '.join(map(_number, (*corner, *size)))} re W n")
        lines += [_draw(item, parts) for item in items]
        if inside is not None:
            lines.append("Q")
    return "\n".join(lines)


def _draw(item: Line | Marks | Block | Words, parts: dict[bool, fonts.Part]) -> str:
    if isinstance(item, Words):
        glyphs = parts[item.bold].glyphs
        numbers = "".join(f"{glyphs.get(letter, 0):04x}" for letter in item.text)
        place = f"1 0 0 -1 {_number(item.left)} {_number(item.y)} Tm"
        return f"BT {_color(item.color)} rg /{_NAMES[item.bold]} {_number(item.size)} Tf {place} <{numbers}> Tj ET"
    if isinstance(item, Block):
        box = item.box
        return f"{_color(item.color)} rg {' '.join(map(_number, (box.left, box.top, box.width, box.height)))} re f"
    if isinstance(item, Line):
        dashes = f"[{' '.join(map(_number, item.dashes))}] 0 d"
        return f"{_color(item.color)} RG {_number(item.width)} w {dashes} {_path(item.points)} S"
    paint = "s" if item.face is None else "b"
    face = "" if item.face is None else f"{_color(item.face)} rg "
    style = f"{face}{_color(item.edge)} RG {_number(item.edge_width)} w [] 0 d"
    outline = f"{_path(item.outline)} {paint}"
    places = [f"q 1 0 0 1 {_number(x)} {_number(y)} cm {outline} Q" for x, y in item.places.tolist()]
    return "\n".join([style, *places])


def _path(points: Points) -> str:
    (x, y), *rest = points.tolist()
    return f"{_number(x)} {_number(y)} m " + " ".join(f"{_number(x)} {_number(y)} l" for x, y in rest)


def _color(color: str) -> str:
    return " ".join(f"{int(color[place : place + 2], 16) / 255:.3g}" for place in (1, 3, 5))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
