# Two commands: `make study` and `make test`. Each sets up what it needs in .venv first.
#   make study PROFILE=smoke     another profile      make study ARGS="--seed 1337"     more options
#   make study STUDY=robustness  another study: a page of flows/, or a file of your own
#   make ui                      Prefect's UI, to start studies in and to watch them; `make study` shows in it too
#   make test ARGS="-k locks"    part of the tests
#   make test ARGS="-n 0"        in one process, as --pdb needs it
#   make test-long               thousands of histories and corruptions, 200 killed trainings: `make test` has a few of each
#   make test-long RATCHET_LONG_SEED=x   a third of them, drawn by x; in .ci/run x is the commit
#   make test-slurm              all tests on a real SLURM cluster of their own; `make test` runs the short ones. Where
#                                SLURM is missing they are skipped: tests/slurm/cluster.sh install gets it (Debian)
#   make test-browser            pages and the Prefect UI in a real Chromium
#   make .venv-peers          nanoGCG and torch-lr-finder for benchmarks; they run on our torch and transformers
#   make .venv-kronfluence       the peer of benchmarks/influence.py
#   make assets                  fetches what the profiles smollm2-135m and t5-derivative need (230 MB) into assets/

PYTHON  ?= $(firstword $(foreach v,3.11 3.12 3.13,$(shell command -v python$(v) 2>/dev/null)) python3)
STUDY   ?= robustness
PROFILE ?= quick
ROOT    ?= runs
ARGS    ?=
TIMES   ?= .pytest_cache
timed = --durations 20 --junit-xml $(TIMES)/$@.xml  # the file: seconds of each test

# Prefect of these targets keeps to itself: no profile, database or server of the user's is touched.
export PREFECT_HOME = $(CURDIR)/.prefect
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export TOKENIZERS_PARALLELISM = true
export HF_HUB_DISABLE_TELEMETRY = 1
export DO_NOT_TRACK = 1

.PHONY: study ui test test-long test-slurm test-browser lint assets clean

study: .venv/installed
	.venv/bin/ratchet run $(STUDY) --prefect --profile $(PROFILE) --root $(ROOT) $(ARGS)

ui: .venv/installed
	.venv/bin/ratchet ui $(ARGS)

test: .venv/installed
	.venv/bin/python -m pytest -n 2 $(timed) $(ARGS)

test-long: .venv/installed
	.venv/bin/python -m pytest -n 2 -m long $(timed) $(ARGS)

# Most of these tests wait most of the time: each of the three workers has a cluster and a server of its own.
test-slurm: .venv/installed
	.venv/bin/python -m pytest -n 3 -m "" tests/slurm $(timed) $(ARGS)

# Chromium is the machine's own (apt-get install chromium); where it is missing they are skipped.
test-browser: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt playwright
	.venv/bin/python -m pytest -m browser tests/browser $(timed) $(ARGS)

lint: .venv/installed
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

assets: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt onnx
	.venv/bin/python -m tools.assets

# torch comes first and by itself: with it installed, nothing else asks for another build of it.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit(f"Python {v[0]}.{v[1]} is not supported: install Python 3.11, 3.12 or 3.13, or name one: make PYTHON=/path/to/python3.12")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

# Without what they ask for: nanoGCG pins a transformers of 2024, which would bring an older torch with it.
.venv-peers: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ nanogcg==0.3.0 torch-lr-finder==0.2.2 submitit==1.5.4

# lm-evaluation-harness, for benchmarks/perplexity.py, on our torch and transformers too.
.venv-lm-eval: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ lm-eval==0.4.13 evaluate \
	  sqlitedict pytablewriter word2number more_itertools sacrebleu zstandard tqdm-multiprocess DataProperty chardet \
	  mbstrdecoder pathvalidate tabledata tcolorpy typepy peft jsonlines portalocker colorama tabulate lxml

# kronfluence asks for torchvision, which would bring another torch; it works without, on ours.
.venv-kronfluence: .venv/installed
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ kronfluence==1.0.1 \
	  einconv==0.1.0 opt_einsum==3.4.0 einops==0.8.2 accelerate==1.15.0

clean:
	rm -rf .venv .venv-peers .venv-lm-eval .venv-kronfluence .prefect
