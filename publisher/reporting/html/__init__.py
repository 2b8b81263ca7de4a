"""A report as one page with plots, as text, and as CSV files. Only this room knows Jinja2."""
