"""Files of every kind that `file_reader` reads, made by the tests."""

import io
import struct
import wave
import zipfile
import zlib


def pdf(pages=2, flags=""):
    """A PDF with a line on each page. `flags` go into its trailer."""
    kids = " ".join(f"{4 + 2 * page} 0 R" for page in range(pages))
    font = "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
    parts = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Count {pages}/Kids[{kids}]/MediaBox[0 0 612 792]>>", font]
    for page in range(pages):
        parts.append(f"<</Type/Page/Parent 2 0 R/Contents {5 + 2 * page} 0 R/Resources<</Font<</F1 3 0 R>>>>>>")
        text = f"BT /F1 12 Tf 72 700 Td (text of page {page + 1}) Tj ET"
        parts.append(f"<</Length {len(text)}>>stream\n{text}\nendstream")
    written, size, places = ["%PDF-1.4\n"], 9, []
    for number, part in enumerate(parts, 1):
        places.append(f"{size:010} 00000 n \n")
        written.append(f"{number} 0 obj\n{part}\nendobj\n")
        size += len(written[-1])
    trailer = f"trailer<</Size {len(parts) + 1}/Root 1 0 R{flags}>>\nstartxref\n{size}\n%%EOF\n"
    table = f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{''.join(places)}"
    return ("".join(written) + table + trailer).encode()


def encrypted_pdf():
    from pypdf import PdfWriter

    writer, out = PdfWriter(clone_from=io.BytesIO(pdf())), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


def docx():
    from docx import Document

    document, out = Document(), io.BytesIO()
    document.add_heading("Rivers", 1)
    document.add_paragraph("Two of them.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "Momu", "12 km"
    document.save(out)
    return out.getvalue()


def pptx():
    from pptx import Presentation

    show, out = Presentation(), io.BytesIO()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Rivers", "Momu\nTila"
    slide.notes_slide.notes_text_frame.text = "say more"
    show.save(out)
    return out.getvalue()


def xlsx(claimed=""):
    """A sheet with three cells; `claimed` is what it says of its range."""
    from openpyxl import Workbook

    book, out = Workbook(), io.BytesIO()
    book.active.title = "Rivers"
    book.active.append(["name", "length"])
    book.active["C7"] = "far"
    book.save(out)
    if not claimed:
        return out.getvalue()
    return changed(out.getvalue(), "xl/worksheets/sheet1.xml", lambda text: text.replace(b'"A1:C7"', claimed.encode()))


def changed(data, name, change):
    """A zip in which one member is another."""
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        return packed({one: change(old.read(one)) if one == name else old.read(one) for one in old.namelist()})


def packed(members):
    """A zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def png(width=2, height=2):
    def chunk(name, data):
        return struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))

    rows = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    head = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def wav(seconds=0.1):
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0\1" * int(8000 * seconds))
    return out.getvalue()
