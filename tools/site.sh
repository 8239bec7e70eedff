#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/site.sh
#
# Builds the documentation site into build-site/html with MkDocs, in a separate virtual environment.
# A broken link is an error.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=build-site/venv
lock=tools/requirements-site.lock
python=${PYTHON:-python3}

if ! cmp -s $lock $venv/requirements-site.lock; then
	rm -rf $venv
	"$python" -m venv $venv
	hashes=(--require-hashes --only-binary :all:)
	if "$python" tools/lock.py --fits; then
		cp $lock $venv/list.txt
	else
		hashes=()
		"$python" tools/lock.py --ranges site >$venv/list.txt
	fi
	$venv/bin/pip install --quiet --disable-pip-version-check "${hashes[@]}" -r $venv/list.txt
	cp $lock $venv/requirements-site.lock
fi
NO_MKDOCS_2_WARNING=1 $venv/bin/mkdocs build --strict --quiet
echo "harp: open build-site/html/index.html"
