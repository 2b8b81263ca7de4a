"""Records of XML: templates, text and patterns that every XML format shares."""
