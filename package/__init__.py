"""What packages ship and the repository does not hold: made when the package is built.

`pages.py` takes publisher(1) apart into a manual page for each command; `completions.py` writes the shells' completion of the
command line (with shtab, a tool of the build only). `python -m package FOLDER` makes both; `setup.py` has them made for wheels,
and the Debian package and the RPM take them from there. `debian/` and `publisher.spec` build those two. `site.py` is for
`make docs`, which makes a web site of the documents.
"""
