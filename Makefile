# Everything sets itself up: a machine with Python 3.11 or newer (and its venv module) is enough.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
comma := ,
SOURCE ?= arex
SOAK_S ?= 120
SOAK_SEED ?= 1
FUZZ_RUNS ?= 300000
MINUTES ?= 15
SEED ?= 1

.PHONY: demo test test-slow test-pythons lock audit test-lowest test-long fuzz soak stories faults lint bench docs packages deb rpm rpm-el9 check-packages release clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "no venv module here; on Debian: apt-get install python3-venv"; exit 1; }
	PIP_NO_COMPILE=1 $(BIN)/pip install --quiet --editable .
	touch $@

# With the Python of the lock exactly its versions, each file held against its hash; with others what pyproject.toml allows.
$(VENV)/.ready: pyproject.toml .ci/locked.txt
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
		$(BIN)/pip install --quiet --require-hashes --requirement .ci/locked.txt && \
		PIP_NO_COMPILE=1 $(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .; \
	else $(BIN)/pip install --quiet --editable '.[dev]'; fi
	touch $(VENV)/.installed $@

demo: $(VENV)/.installed  ## the main job, start to end, on loopback; SOURCE: arex, slurm, htcondor, gridengine, sonar or fleet (needs a PostgreSQL server); KEEP=1 leaves the site in build/demo
	$(if $(filter fleet,$(SOURCE)),$(BIN)/python -c 'import apscheduler$(comma) psycopg' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[postgres$(comma)run]')
	$(BIN)/python -m tests.demo --source $(SOURCE) $(if $(KEEP),--keep build/demo)

test: $(VENV)/.ready  ## all tests but the slow and the long ones
	$(BIN)/pytest -m "not long and not slow"

test-slow: $(VENV)/.ready  ## the tests that take seconds each; PART=1/3: a third of them, as in CI
	$(BIN)/pytest -m "slow and not long" --dist load $(if $(PART),--part $(PART))

test-pythons:  ## those that open databases, connections and processes, on every other Python that is here
	.ci/pythons

lock:  ## write .ci/locked.txt: the versions for development and CI, with hashes
	.ci/lock

audit:  ## known holes of these versions, where somebody can be asked
	.ci/audit

test-lowest:  ## those that lean on other people's libraries, with the oldest versions that are allowed
	.ci/lowest

test-long: $(VENV)/.ready  ## the tests that take minutes: among them random walks of more than 10,000 steps
	$(BIN)/pytest -m "long or hypothesis" --hypothesis-profile=long --dist load

fuzz: $(VENV)/.ready  ## bytes that nobody thought of for every reader of foreign ones, led by coverage (atheris)
	$(BIN)/pip install --quiet atheris
	for reader in gridengine-colon gridengine-json sonar-texts classad formula answer arc-conf configuration; do \
		$(BIN)/python -m tests.fuzz.guided_fuzz $$reader -runs=$(FUZZ_RUNS) -max_len=2000 -timeout=20 -rss_limit_mb=1024 || exit 1; \
	done

soak: $(VENV)/.ready  ## publish beside a live A-REX on a bad day; ends by itself, its status says whether all is there
	$(BIN)/python -m tests.faults.soak --seconds $(SOAK_S) --seed $(SOAK_SEED)

stories: $(VENV)/.ready  ## random stories of every command under faults, for MINUTES from a seed on; the numbers in STORY_TOLD
	STORY_MINUTES=$(MINUTES) STORY_SEED=$(SEED) $(BIN)/pytest -n 0 tests/faults/test_story.py -k as_long_as

faults: $(VENV)/.ready  ## try all faults again, and write docs/faults.md
	$(BIN)/python -m tests.faults.faults_tried --write

lint: $(VENV)/.ready  ## style, formatting, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready  ## speed and memory, against the floors of this machine and what was asked for; ARC_SRC: beside ARC
	$(BIN)/python -m benchmarks $(BENCH)
	$(BIN)/python -m benchmarks.asked $(ASKED)

docs: $(VENV)/.installed  ## the documents as a web site, in build/site; warnings are errors
	$(BIN)/python -c 'import mkdocs' 2>/dev/null || $(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

packages: $(VENV)/.ready  ## wheel and sdist, in dist/
	$(BIN)/python -m build --outdir dist .

# Packages are built of what git knows, with the system's Python and its packages.
SYSTEM = PATH=/usr/sbin:/usr/bin:/sbin:/bin
SOURCES = mkdir -p dist && git ls-files -z | xargs -0 tar cf -

deb:  ## a Debian package, in dist/; what it needs: package/debian/control, Build-Depends
	rm -rf build/deb && mkdir -p build/deb/source
	$(SOURCES) | tar xf - -C build/deb/source
	cp -r package/debian build/deb/source/debian
	cd build/deb/source && $(SYSTEM) dpkg-buildpackage -us -uc -b
	cp build/deb/accounting-publisher_*_all.deb dist/

rpm:  ## an RPM, in dist/; what it needs: package/publisher.spec, BuildRequires
	rm -rf build/rpm && mkdir -p build/rpm/SOURCES
	$(SOURCES) --transform 's,^,accounting-publisher-0.1.0/,' | gzip > build/rpm/SOURCES/accounting-publisher-0.1.0.tar.gz
	$(SYSTEM) rpmbuild -bb $(RPMFLAGS) --define "_topdir $(CURDIR)/build/rpm" package/publisher.spec
	cp build/rpm/RPMS/noarch/*.rpm dist/

# What EL9's glibc can load. The wheels are downloaded: the build machine need not be an EL9, but of the same architecture.
EL9_PLATFORMS = $(foreach tag,manylinux_2_34 manylinux_2_28 manylinux_2_17 manylinux2014,--platform $(tag)_$(shell uname -m))
EXTRAS = metrics,postgres,report,run,zstd

rpm-el9: $(VENV)/.ready  ## an RPM for EL9, with the libraries that it needs, in dist/; needs rpmbuild and python3.11 with pip
	rm -rf build/rpm-el9 && mkdir -p build/rpm-el9/SOURCES build/rpm-el9/wheels
	$(SOURCES) --transform 's,^,accounting-publisher-0.1.0/,' | gzip > build/rpm-el9/SOURCES/accounting-publisher-0.1.0.tar.gz
	$(BIN)/python -m build --wheel --outdir build/rpm-el9/wheels .
	$(BIN)/pip download --quiet --only-binary :all: --implementation cp --python-version 3.11 $(EL9_PLATFORMS) \
		--dest build/rpm-el9/wheels "$$(echo build/rpm-el9/wheels/*.whl)[$(EXTRAS)]"
	tar cf build/rpm-el9/SOURCES/wheels.tar -C build/rpm-el9 wheels
	$(SYSTEM) rpmbuild -bb --with private $(RPMFLAGS) --define "dist .el9" --define "_topdir $(CURDIR)/build/rpm-el9" \
		package/publisher.spec
	cp build/rpm-el9/RPMS/*/*.rpm dist/

check-packages: deb  ## the packages on a fresh Debian in a folder: as root, with mmdebstrap; that for EL9 where it can be built
	if command -v rpmbuild >/dev/null && PATH=/usr/bin command -v python3.11 >/dev/null; then $(MAKE) rpm-el9; fi
	if command -v lintian >/dev/null; then lintian --allow-root --fail-on error,warning build/deb/*.changes; fi
	$(MAKE) $(VENV)/.ready
	$(BIN)/pytest -n 0 -m long tests/project/test_installed.py

# The tools that make a wheel decide on its bytes too: the same ones make the same file.
release: $(VENV)/.installed  ## the wheel of the commit, built twice and compared, its SBOM (CycloneDX) and checksums, in dist/release
	test -z "$$(git status --porcelain)" || { echo "commit first: a release is what git has"; exit 1; }
	rm -rf build/release dist/release && mkdir -p dist/release
	$(PYTHON) -m venv build/release/tools && build/release/tools/bin/pip install --quiet build cyclonedx-bom
	set -e; umask 022; export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); for once in first second; do \
		mkdir -p build/release/$$once/source; git archive HEAD | tar xf - -C build/release/$$once/source; \
		TZ=UTC-$${#once} build/release/tools/bin/python -m build --wheel --outdir build/release/$$once \
			build/release/$$once/source >/dev/null; \
	done
	cmp build/release/first/*.whl build/release/second/*.whl && cp build/release/first/*.whl dist/release/
	$(PYTHON) -m venv --without-pip build/release/installed
	build/release/tools/bin/pip --python build/release/installed/bin/python install --quiet \
		"$$(echo dist/release/*.whl)[$(EXTRAS)]"
	build/release/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file "$$(echo dist/release/*.whl | sed 's/-py3.*/.cdx.json/')" build/release/installed/bin/python
	cd dist/release && sha256sum * > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
