# Two commands matter: `make demo` and `make test`. Both install what they need.

CARGO ?= cargo
BIN := target/release/cenote

.PHONY: all demo test quick check build tools nightly judge bench clean install deb pages

all: build

build:
	$(CARGO) build --release --locked

# A real pool written by OpenZFS, mounted through FUSE and verified byte for byte.
demo: build
	$(CARGO) build --release --locked -p testkit
	scripts/demo.sh

# Everything: unit, property, golden, damage, hostile images, mounts, commands.
test: tools
	scripts/test.sh

# Unit tests and the fast integration tests of every crate; a few minutes once built.
quick:
	scripts/test.sh quick

# Format, lints, documentation, licences.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --locked --document-private-items
	scripts/tidy.sh
	@if ! command -v cargo-deny >/dev/null 2>&1; then \
		echo "SKIPPED: cargo deny is not installed (cargo install cargo-deny)"; \
	else \
		cargo deny --workspace check bans licenses sources && \
		{ cargo deny --workspace check advisories || \
		echo "note: the advisories were not checked, or see above"; }; \
	fi

# OpenZFS's own zdb, ztest, zstream and raidz_test as judges; zfs-fuse as a peer.
tools:
	scripts/install-tools.sh

# The long versions of the randomised tests.
nightly: tools
	CENOTE_NIGHTLY=1 CENOTE_SEEDS=1000 scripts/test.sh

# Pools of every kind and state go to OpenZFS's kernel module, in a virtual machine that is
# built when absent, and come back. Root, about 25 minutes. CASES="rz1w5 full" runs only these.
judge: build
	scripts/judge.sh $(CASES)

# The program, its links, pages, completions and units below PREFIX.
PREFIX ?= /usr/local
install: build
	scripts/install.sh $(BIN) $(PREFIX) $(DESTDIR)

# target/cenote_VERSION_ARCH.deb, by dpkg-deb alone.
deb: build
	scripts/make-deb.sh $(BIN)

# What the table of commands says, into man and dist/completions.
pages:
	CENOTE_BLESS=1 $(CARGO) test --locked -p cli --bin cenote current

bench: build
	scripts/bench.sh

clean:
	$(CARGO) clean
