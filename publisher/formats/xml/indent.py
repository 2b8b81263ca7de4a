"""XML for people: an element a line."""

from lxml import etree


def indented(text: str) -> str:
    """Return the text of a document with each element on a line of its own.

    Raises: lxml.etree.XMLSyntaxError.
    """
    root = etree.fromstring(text.encode(), etree.XMLParser(remove_blank_text=True))
    etree.indent(root)
    return etree.tostring(root, encoding="unicode")
