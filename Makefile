# The two commands that a fresh machine needs: `make demo` and `make test`. Both set up what is missing first
# (scripts/setup.sh) and need root, because farfork stops other processes, makes namespaces and serves page faults.
#
# Build products and tools are kept in FARFORK_CACHE, outside the work tree, so that a clone made anew builds quickly. Each
# place of a clone has its own: programs have the paths of their sources in them, and cargo does not notice when those move.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo install install-bench check test test-fresh test-long test-machines test-machines-emulated bench setup setup-program

export FARFORK_CACHE ?= $(HOME)/.cache/farfork
export CARGO_TARGET_DIR ?= $(FARFORK_CACHE)/target$(subst /,-,$(CURDIR))
export FARFORK_PYTHON ?= $(FARFORK_CACHE)/python/bin/python3

PREFIX ?= /usr/local
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d

help:
	@echo 'make demo      three nodes on this machine, a Python parent, sixteen children on two other nodes (root)'
	@echo 'make install   the binary, manual pages and completions, below PREFIX=/usr/local (root)'
	@echo 'make install-bench  `farfork bench` and `farfork stress`, next to it (root)'
	@echo 'make check     in minutes, for use between commits: style, lints, unit tests, forty end-to-end tests (root)'
	@echo 'make test      format, style, lints, licences, unit tests, fuzz targets, end-to-end tests (root)'
	@echo 'make test-fresh tests as on a machine that was just installed: an empty /run, /tmp, /var/lib and home (root)'
	@echo 'make test-long the long tests, which make test leaves out (root; an hour or more)'
	@echo 'make test-machines  tests between machines with kernels, clocks and files of their own (root; ten minutes, first half an hour)'
	@echo 'make test-machines-emulated  forks between stock kernels and processors that differ, emulated (root; half an hour)'
	@echo 'make bench     what a fork costs, beside floors and a published reference (root; takes five minutes)'
	@echo 'make setup     install the system and Python packages of the tests; demo and install need fewer (root)'

demo: preflight-demo setup-program
	@cargo build --release --bin farfork
	@"$(CARGO_TARGET_DIR)/release/farfork" demo

install: setup-program
	@cargo build --release --bin farfork
	@install -D "$(CARGO_TARGET_DIR)/release/farfork" "$(DESTDIR)$(PREFIX)/bin/farfork"
	@"$(DESTDIR)$(PREFIX)/bin/farfork" man --output "$(DESTDIR)$(PREFIX)/share/man/man1"
	@mkdir --parents $(COMPLETIONS:%="$(DESTDIR)$(PREFIX)/share/%")
	@"$(DESTDIR)$(PREFIX)/bin/farfork" completions bash > "$(DESTDIR)$(PREFIX)/share/bash-completion/completions/farfork"
	@"$(DESTDIR)$(PREFIX)/bin/farfork" completions zsh > "$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_farfork"
	@"$(DESTDIR)$(PREFIX)/bin/farfork" completions fish > "$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/farfork.fish"

# After `make install`. The manual pages are those of both programs.
install-bench: setup
	@cargo build --release --bin farfork-bench
	@install -D "$(CARGO_TARGET_DIR)/release/farfork-bench" "$(DESTDIR)$(PREFIX)/bin/farfork-bench"
	@"$(DESTDIR)$(PREFIX)/bin/farfork" man --output "$(DESTDIR)$(PREFIX)/share/man/man1"

check: preflight-check setup
	@cargo xtask check

test: preflight-test setup
	@cargo xtask test

test-fresh: preflight-test-fresh setup
	@cargo xtask test-fresh

test-long: preflight-test setup
	@cargo xtask test-long

test-machines: preflight-test setup
	@tests/machines/run.sh

test-machines-emulated: preflight-test setup
	@tests/machines/run.sh --emulated

bench: preflight-bench setup
	@cargo xtask bench

setup:
	@scripts/setup.sh

setup-program:
	@scripts/setup.sh program

preflight-%:
	@scripts/preflight.sh 'make $*'
