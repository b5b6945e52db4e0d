# `make refresh` and `make test` are all the set-up: each makes the virtual environment when it is missing or old.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HERE := $(CURDIR)

PORT ?= 3000
QUERY ?= ¿Cuántas peticiones por minuto permite el plan Pro?
export DOCS QUERY

# Another folder of documents gets a storage and a Dagster instance of its own, named by its path.
define SCOPE
set -e; \
if [ -n "$$DOCS" ]; then \
	[ -d "$$DOCS" ] || { echo "DOCS: no such folder: $$DOCS" >&2; exit 2; }; \
	root=$$(cd -- "$$DOCS" && pwd); \
	own="$(HERE)/.ctx/$$(basename -- "$$root")-$$(printf '%s' "$$root" | cksum | cut -d' ' -f1)"; \
	export CTX_STORAGE__URI="$$own/index" DAGSTER_HOME="$$own/dagster_home"; \
	export CTX_SOURCE="[{ name = 'docs', path = '''$$root''' }]"; \
else \
	export DAGSTER_HOME="$${DAGSTER_HOME:-$(HERE)/dagster_home}"; \
fi
endef

.PHONY: refresh search dev test test-long lint check clean

refresh: $(STAMP)
	@$(SCOPE); code=0; $(BIN)/ctx-pipeline refresh || code=$$?; [ $$code -le 1 ] || exit $$code; \
	if [ -n "$$DOCS" ]; then printf '\n$$ make search DOCS="%s" QUERY="%s"\n' "$$DOCS" "$$QUERY"; \
	else printf '\n$$ $(BIN)/ctx-pipeline search "%s" -k 1\n' "$$QUERY"; fi; \
	$(BIN)/ctx-pipeline search -k 1 -- "$$QUERY"; exit $$code

search: $(STAMP)
	@$(SCOPE); $(BIN)/ctx-pipeline search -- "$$QUERY"

dev: $(STAMP)
	@$(SCOPE); umask 077; mkdir -p "$$DAGSTER_HOME"; \
	[ -e "$$DAGSTER_HOME/dagster.yaml" ] || cp dagster_home/dagster.yaml "$$DAGSTER_HOME/"; \
	exec $(BIN)/dagster dev -w workspace.yaml -p $(PORT)

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

test-long: $(STAMP)
	$(BIN)/python -m pytest -m long

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: test lint

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo 'Python 3.11 or newer is needed: set PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed: set PYTHON=/path/to/python3.11'; exit 1; }
	@echo 'setting up $(VENV): about 1.3 GB, a few minutes'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)
