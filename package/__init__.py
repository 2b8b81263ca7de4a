"""What packages ship and the repository does not hold: made when the package is built.

`pages.py` makes the manual pages of the prose in man/ and of the command line (with docutils),
`completions.py` the shells' completion (with shtab); both are tools of the build only.
`python -m package FOLDER` makes both; `setup.py` has them made for wheels, and the Debian package
and the RPM take them from there. `debian/` and `publisher.spec` build those two. `site.py` is for
`make docs`, which makes a web site of the documents.
"""
