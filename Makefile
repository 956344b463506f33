# Everything runs in .venv, which `make setup` builds from pyproject.toml and constraints.txt.
PYTHON ?= python3.11
BIN := .venv/bin
RUN := env OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PATH="$(CURDIR)/$(BIN):$$PATH"
STAMP := .venv/.installed

.PHONY: setup demo test test-fast lint bench exhibits mutants clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch numpy setuptools wheel
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --constraint constraints.txt \
		--editable ".[test,transformers,accelerate,lightning,trl,deepspeed,numba,mpi,parquet]"
	touch $(STAMP)

# A two-process fine-tuning run on real text, right and wrong; leaves out/right.html and out/wrong.html.
demo: setup
	mkdir -p out
	@echo; echo "1 of 2: a Trainer as it comes"
	$(RUN) weighbridge weigh --html out/right.html -- \
		torchrun --nproc-per-node 2 examples/trainer.py
	@echo; echo "2 of 2: the same with average_tokens_across_devices=False"
	$(RUN) weighbridge weigh --html out/wrong.html -- \
		torchrun --nproc-per-node 2 examples/trainer.py --average-tokens-across-devices false; \
		code=$$?; [ $$code -eq 1 ] || exit $$code
	@echo; echo "The pages are out/right.html and out/wrong.html."

test: setup lint
	$(RUN) $(BIN)/python -m pytest

# Everything that starts no launcher and opens no browser.
test-fast: setup
	$(RUN) $(BIN)/python -m pytest -m "not launch and not browser"

lint: setup
	$(BIN)/ruff check src tests examples benchmarks
	$(BIN)/ruff format --check src tests examples benchmarks
	$(BIN)/mypy

# The catalogue's exhibits on real processes, and mutants of its repairs: minutes each.
exhibits mutants: setup
	$(RUN) $(BIN)/python -m pytest -m $@ tests/$@

# Ratios to named rivals, both sides in one run: benchmarks/OVERHEAD.md (weighing) and benchmarks/RESULTS.md (the cure).
bench: setup
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(RUN) $(BIN)/python benchmarks/overhead.py
	$(RUN) $(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv out build dist
