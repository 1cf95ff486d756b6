# `make help` lists the targets. Two are enough for most people: `make serve` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
MODEL := models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
# Which form of its weights is laid depends on the processor, so this stamp bears a sum of what that can do,
# and a number that grows when `ovserve pull` lays another form.
LAID := models/smollm2/.converted-7-$(shell grep -m1 ^flags /proc/cpuinfo 2>/dev/null | cksum | cut -d' ' -f1)
MINILM := models/minilm/openvino_model.xml
PORT ?= 8000
SOURCES := ovserve tests benchmarks scripts examples graphs proto

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev deploy-tools serve test test-fast check fmt lint type proto proto-check docs soak fuzz vision-model fluent-vision-model frameworks kserve api-fuzz bench bench-assisted bench-embeddings bench-idle bench-micro bench-models bench-paged bench-peers hostile wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: .venv/.installed $(LAID) ## environment in .venv, the command ovserve, the default model

OCR := models/ocr/recogniser/1/model.onnx
VAD := models/vad/1/model.onnx
setup-dev: setup .venv/.installed-dev $(MINILM) $(OCR) $(VAD) ## setup, plus what the tests and checks need

serve: setup ## serve the default model on port 8000 (PORT=... for another)
	@exec $(BIN)/ovserve serve --rest_port $(PORT) models/smollm2

# Three on two cores: half of the time a test waits for a process or a clock.
JOBS ?= 3
# xdist gives a test that ended its process to the next process, so more than one of these makes a hang long.
# It gives out files in the order of tests/conftest.py, the long ones first.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 1
TESTS := $(BIN)/python -m pytest $(PARALLEL) --durations 25 --durations-min 2
test: setup-dev ## tests, the real engine included, and which were the slowest; JOBS=3 processes
	$(TESTS) -m 'not slow and not long'

# What needs no model: the scripted engine, pure functions, the HTTP and gRPC servers in the test's own process.
FAST := tests/access tests/api tests/calculators tests/graph tests/llm tests/sandbox tests/serving \
	tests/tools tests/test_architecture.py tests/test_options.py tests/test_toy_kind.py
test-fast: setup-dev ## tests without a model; for while one edits
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not long and not model' $(wildcard $(FAST))

.PHONY: test-long
test-long: setup-dev ## the rest of the tests that CI runs: property tests, a real browser, long prompts, shipped graphs
	$(TESTS) -m 'long and not slow'

# In one run, so that no process waits for the end of the first half, and tests are collected once, in 6 s or more.
.PHONY: test-all
test-all: setup-dev ## `make test` and `make test-long` in one run
	$(TESTS) -m 'not slow'

# mypy takes half a minute of one core, and the environment of protoc waits for the net: both beside the tests.
check: setup-dev fmt-check lint ## format, lint, types, generated code, all tests, which hold the counts of `make shape`
	+@$(MAKE) --no-print-directory --jobs 3 type proto-check test-all

.PHONY: shape
shape: setup-dev ## how much there is to understand: files, lines, circles, calls per token and request
	$(BIN)/python -m scripts.shape
	$(BIN)/python -m scripts.count_calls

fmt: setup-dev ## format the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix --quiet $(SOURCES) || true

.PHONY: fmt-check
fmt-check: setup-dev
	$(BIN)/ruff format --check $(SOURCES)

lint: setup-dev ## ruff
	$(BIN)/ruff check $(SOURCES)

# One by one: files of several examples have the same name.
type: setup-dev ## mypy --strict, of the package, benchmarks, scripts, and what authors of graphs copy from
	$(BIN)/mypy
	@for file in examples/*.py $$(find examples graphs -name calculators.py); do \
		$(BIN)/mypy --strict --no-error-summary $$file || exit 1; done

proto: .venv-proto/.installed ## write ovserve/protos from proto/
	.venv-proto/bin/python proto/generate.py

proto-check: .venv-proto/.installed ## fail if ovserve/protos is not what proto/ says
	.venv-proto/bin/python proto/generate.py --check

docs: setup-dev ## write docs/api.md, metrics.md and the tables of cli.md and calculators.md from the server's own tables
	$(BIN)/python -m scripts.api_docs
	$(BIN)/python -m scripts.options_docs
	$(BIN)/python -m scripts.metrics_docs
	$(BIN)/python -m scripts.nodes_docs

# Without --quiet, which hides warnings from --strict. The variable turns off a notice of the theme's authors.
.PHONY: docs-site
docs-site: .venv/.installed-docs ## build/site: the pages of docs/ with a search; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/site/index.html, or: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

test-slow: setup-dev ## the tests that take minutes, such as 200 reloads under load
	$(BIN)/python -m pytest -m slow

.PHONY: test-slow faults
faults: setup-dev ## every row of the fault table in docs/reliability.md
	$(BIN)/python -m pytest -v -m 'slow or not slow' tests/faults

MINUTES ?= 60
soak: setup-dev ## an hour (MINUTES=60) of mixed traffic; does memory, descriptors or latency grow? plot in soak.png
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

FUZZ := $(BIN)/python -m pytest --hypothesis-profile=thorough --timeout=7200
fuzz: setup-dev ## all property tests, and texts at random under grammars, with 60 times as many examples
	$(FUZZ) -m 'hypothesis and not slow'
	$(FUZZ) -m 'not hypothesis and not slow' tests/llm tests/engine/test_reservation.py tests/engine/test_tool_grammars.py tests/engine/test_schema_grammar.py tests/engine/paged/test_masked_texts.py

.PHONY: schema-suite
schema-suite: setup-dev ## how grammars hold the JSON Schema Test Suite and 1,500 real schemas; the numbers may only improve
	$(BIN)/python -m pytest --hypothesis-profile=thorough --timeout=3600 tests/engine/test_schema_suite.py

wheel: setup ## dist/ovserve-VERSION.whl, which needs no checkout
	$(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist .
	@ls dist/ovserve-*.whl

vision-model: setup-dev ## models/vision for graphs/vision: the default model with an untrained vision encoder
	$(BIN)/python -m scripts.vision_model models/vision $(MODEL)

.PHONY: image-model
image-model: setup-dev ## models/image for graphs/image_generation: a tiny pipeline that draws noise
	$(BIN)/python -m scripts.image_model models/image

QWEN := models/qwen2.5-coder-0.5b
fluent-vision-model: setup-dev ## models/qwen2vl: Qwen2.5-Coder 0.5B in the layout of Qwen2-VL, for its slow tests (0.5 GB to fetch)
	$(BIN)/ovserve pull qwen2.5-coder-0.5b
	$(BIN)/python -m scripts.qwen2vl_model models/qwen2vl $(QWEN)

frameworks: setup .venv-frameworks/.installed ## openai client and agent frameworks against a model that calls tools (1.1 GB)
	$(BIN)/ovserve pull qwen2.5-coder-1.5b
	.venv-frameworks/bin/python -m pytest -m slow tests/frameworks

# In an environment of its own, 0.7 GB. Ray reads its environment when it is imported: a run per data plane.
.PHONY: test-ray
RAY_TESTS := .venv-ray/bin/python -m pytest -m 'slow or not slow' tests/deploy/ray
test-ray: setup .venv-ray/.installed ## replicas on a Ray cluster of four nodes on this machine, both data planes (20 minutes)
	OVSERVE_RAY_DATA_PLANE=python $(RAY_TESTS)
	OVSERVE_RAY_DATA_PLANE=haproxy $(RAY_TESTS)

.PHONY: bench-ray
bench-ray: setup .venv-ray/.installed ## cost of a token behind Ray Serve next to the bare server, and a simulation of 512 replicas (five minutes)
	.venv-ray/bin/python -m benchmarks.ray_serve
	.venv-ray/bin/python -m benchmarks.ray_simulation

deploy-tools: setup-dev ## helm and kubectl in .tools/, for the tests of examples/deploy
	$(BIN)/python -m scripts.deploy_tools

.PHONY: image-constraints
image-constraints: setup-dev ## examples/deploy/constraints.txt: the versions that the container file installs
	$(BIN)/python -m scripts.image_constraints

.PHONY: kserve-manifests
kserve-manifests: setup-dev ## the other two forms of examples/deploy/kserve/clusterservingruntime.yaml
	$(BIN)/python -m scripts.kserve_manifests

kserve: setup-dev .venv-kserve/.installed ## KServe's own Python client against the server
	$(BIN)/python -m pytest -m slow tests/api/kserve

EXAMPLES ?= 500
api-fuzz: setup-dev ## schemathesis against /openapi.json, EXAMPLES=500 bodies per operation
	$(BIN)/python -m scripts.api_fuzz --examples $(EXAMPLES)

bench: setup-dev ## this server against the bare engine, alternating (about 10 minutes)
	$(BIN)/python -m benchmarks.compare

bench-assisted: setup-dev ## prompt lookup, and with DRAFT=directory a draft model, against plain decoding
	$(BIN)/python -m benchmarks.assisted $(if $(MAIN),--model $(MAIN)) $(if $(DRAFT),--draft $(DRAFT)) $(if $(ENGINE),--engine $(ENGINE)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(TOKENS),--tokens $(TOKENS)) \
		$(if $(STREAMS),--streams $(STREAMS)) $(if $(CANDIDATES),--candidates $(CANDIDATES))

.PHONY: bench-real
bench-real: setup-dev ## models of real sizes (SHAPE=llama-3.1-8b, LAYERS=8), ours, OpenVINO GenAI's and llama.cpp's (half an hour, 10 GB of memory)
	$(BIN)/python -m benchmarks.peer_setup llama.cpp
	$(BIN)/python -m benchmarks.real_sizes $(if $(SHAPE),--shape $(SHAPE)) $(if $(LAYERS),--layers $(LAYERS))

bench-peers: setup-dev ## beside llama.cpp's and vLLM's servers, set up in .peers/ (4 GB, 30 minutes the first time)
	$(BIN)/python -m benchmarks.peer_setup
	$(BIN)/python -m benchmarks.peers --no-drafts
	$(BIN)/python -m benchmarks.peers --no-drafts --tokens 512 --concurrency 1,8 --rounds 1
	$(BIN)/python -m benchmarks.peers --tokens 512 --concurrency 1,8 --rounds 1
	$(BIN)/python -m benchmarks.peers --no-drafts --prompt 1500 --concurrency 1,8 --rounds 1
	$(BIN)/python -m benchmarks.peer_scenarios

bench-embeddings: setup-dev ## this server against the bare compiled embedding model, fastembed, sentence-transformers and infinity (5 GB, half an hour the first time)
	$(BIN)/python -m benchmarks.embeddings --setup

.PHONY: bench-speech-out
bench-speech-out: setup-dev ## text to speech beside kokoro-onnx (two minutes, and 680 MB the first time)
	$(BIN)/ovserve pull kokoro
	$(BIN)/python -m benchmarks.speech_out --setup

.PHONY: soak-idle
soak-idle: setup-dev ## ten minutes (MINUTES=10) of Zipf traffic to twelve graphs of which three are loaded; is anything lost?
	$(BIN)/python -m benchmarks.zipf --minutes $(if $(filter 60,$(MINUTES)),10,$(MINUTES))

bench-idle: setup-dev ## what 1,000 idle connections cost beside a load (two minutes)
	$(BIN)/python -m benchmarks.idle

bench-paged: setup-dev ## the paged engine against the one over the library, without the server (more than ten minutes)
	$(BIN)/python -m benchmarks.paged models/smollm2

bench-models: setup-dev ## a hundred small models in one engine process: start, memory, calls, kill -9 (a minute)
	$(BIN)/python -m benchmarks.many_models

.PHONY: bench-batch
bench-batch: setup-dev ## first token and gap of live requests with and without a batch, alternating, and what the batch gets (ten minutes)
	$(BIN)/python -m benchmarks.batch

.PHONY: bench-scrape
bench-scrape: setup-dev ## CPU of the server for each scrape of /metrics, 20 a second (a minute)
	$(BIN)/python -m benchmarks.scrape

hostile: setup-dev ## bodies made to hurt a server: CPU, memory and the wait of /v2/health/live for each (seven minutes)
	$(BIN)/python -m benchmarks.hostile

.PHONY: acceptance
acceptance: setup-dev ## all graphs, configurations and Python handlers of a checkout of OVMS, OVMS_SRC=directory (ten minutes)
	$(BIN)/python -m scripts.acceptance $(OVMS_SRC)
	$(BIN)/python -m scripts.acceptance_python $(OVMS_SRC)

.PHONY: bench-cost bench-long
bench-cost: setup-dev ## what the server itself spends at 1 to 512 streams, with 10,000 idle connections, with 100 graphs (six minutes)
	$(BIN)/python -m benchmarks.cost_curve --picture docs/images/cost.svg

bench-long: setup-dev ## long prompts next to running streams, and a conversation of 50 turns (four minutes)
	$(BIN)/python -m benchmarks.long_prompts

.PHONY: bench-inference
bench-inference: setup-dev ## plain models over HTTP and gRPC against a bare AsyncInferQueue, FastAPI with onnxruntime and MLServer (ten minutes, 600 MB the first time)
	$(BIN)/python -m benchmarks.inference --setup

.PHONY: bench-python
bench-python: setup-dev ## calls of a Python node against the plain inference path (three minutes)
	$(BIN)/python -m benchmarks.python_nodes

.PHONY: bench-speech
bench-speech: setup-dev ## speech to text next to faster-whisper and whisper.cpp (five minutes, 600 MB the first time)
	$(BIN)/ovserve pull whisper-base
	$(BIN)/python -m benchmarks.speech --setup

.PHONY: bench-assistant
bench-assistant: setup-dev ## graphs/voice_assistant: first audio after the end of speech (two minutes, 1.6 GB the first time)
	$(BIN)/ovserve pull whisper-base && $(BIN)/ovserve pull qwen2.5-coder-1.5b && $(BIN)/ovserve pull kokoro
	$(BIN)/python -m benchmarks.assistant

.PHONY: bench-realtime
bench-realtime: setup-dev ## graphs/realtime: first audio after the end of speech, next to three calls (five minutes, 1 GB the first time)
	$(BIN)/ovserve pull whisper-base && $(BIN)/ovserve pull qwen2.5-coder-0.5b && $(BIN)/ovserve pull kokoro
	$(BIN)/python -m benchmarks.realtime

speed-chart: setup ## docs/images/speed.svg from the table of peers in benchmarks/measurements.md
	$(BIN)/python -m scripts.speed_chart

.PHONY: speed-chart recording
recording: setup-dev ## docs/images/run.svg, the moving picture of `ovserve run`
	$(BIN)/ovserve pull qwen2.5-coder-0.5b
	$(BIN)/python -m scripts.terminal_recording

.PHONY: bench-masks
bench-masks: setup-dev ## what the masks of grammars cost per token, and on rows of logits (a minute)
	$(BIN)/python -m benchmarks.grammar_masks models/smollm2
	[ ! -d $(QWEN) ] || $(BIN)/python -m benchmarks.grammar_masks $(QWEN)

bench-micro: setup-dev ## a graph run, a token through the graph, one SSE chunk
	$(BIN)/python -m benchmarks.micro

clean: ## remove the environment, not the models
	rm -rf .peers .venv .venv-proto .venv-frameworks .venv-kserve .venv-ray .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ovserve needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@echo "== making the environment in .venv"
	@$(PYTHON) -m venv .venv || { echo "this Python has no venv module; on Debian: apt-get install python3-venv"; rm -rf .venv; exit 1; }

.venv/.installed: pyproject.toml | .venv/bin/pip
	@echo "== installing ovserve and what it needs (about 150 MB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet -e '.[fast,paged]'
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps $$($(BIN)/python -m scripts.group xgrammar)
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "== installing what the tests need"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet $$($(BIN)/python -m scripts.group dev)
	@touch $@

.venv/.installed-docs: .venv/.installed
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet $$($(BIN)/python -m scripts.group docs)
	@touch $@

# Apart from .venv: the protoc we generate with needs an older protobuf than the one we run with.
.venv-proto/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python -m pip install --disable-pip-version-check --quiet $$($(PYTHON) -m scripts.group proto)
	@touch $@

# Apart from .venv: instructor and openai-agents agree on an older openai only.
.venv-frameworks/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-frameworks
	@.venv-frameworks/bin/python -m pip install --disable-pip-version-check --quiet -e '.[fast,paged]' $$($(PYTHON) -m scripts.group frameworks)
	@.venv-frameworks/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $$($(PYTHON) -m scripts.group xgrammar)
	@command -v npm > /dev/null && npm install --silent --prefix .venv-frameworks ollama@0.6 openai@7.59 @openai/agents-realtime@0.20 esbuild@0.25 || true
	@touch $@

.venv-ray/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip install --disable-pip-version-check --quiet -e '.[fast,paged,ray]' $$($(PYTHON) -m scripts.group ray-tests)
	@.venv-ray/bin/python -m pip install --disable-pip-version-check --quiet --no-deps $$($(PYTHON) -m scripts.group xgrammar)
	@touch $@

# Apart from .venv: it needs an older protobuf than the one we run with.
.venv-kserve/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-kserve
	@.venv-kserve/bin/python -m pip install --disable-pip-version-check --quiet $$($(PYTHON) -m scripts.group kserve)
	@touch $@

$(MODEL): | .venv/.installed
	@echo "== fetching the default model"
	@$(BIN)/ovserve pull smollm2 --engine genai --weight-format source

$(MINILM): | .venv/.installed
	@echo "== fetching the embedding model of the tests (84 MB)"
	@$(BIN)/ovserve pull minilm

$(OCR): | .venv/.installed
	@echo "== fetching the models of the tests that read pictures (16 MB)"
	@$(BIN)/ovserve pull ocr

$(VAD): | .venv/.installed
	@echo "== fetching the model of the tests that find speech (11 MB)"
	@$(BIN)/ovserve pull vad

# docs/performance.md has what each form gains where. It is laid again if a file is gone or `ovserve pull` was told to
# lay another form, which changes pull.json.
LAID_FILES := $(addprefix models/smollm2/,openvino_model.xml openvino_model.bin generation_config.json graph.pbtxt pull.json)
$(LAID): $(MODEL) $(wildcard models/smollm2/pull.json) $(if $(filter-out $(wildcard $(LAID_FILES)),$(LAID_FILES)),lay-again)
	@$(BIN)/ovserve pull smollm2 --weight-format auto --explicit
	@rm -f models/smollm2/.laid-* models/smollm2/.converted-*
	@touch $@
.PHONY: lay-again
lay-again:

.PHONY: test-console screenshots console-vendor
test-console: setup-dev ## the console in a real browser; needs Debian's chromium-headless-shell or chromium, or CHROMIUM=/path
	$(BIN)/python -m pytest tests/console

screenshots: setup-dev ## pictures of every page of the console in screenshots/, to be looked at
	$(BIN)/python -m tests.console.screenshots

.PHONY: readme-pictures
readme-pictures: setup-dev ## the two pictures of the console in the README, anew, of the default model as `make serve` serves it
	$(BIN)/python -m tests.console.screenshots --readme

console-vendor: setup-dev ## bundle the third-party code of the console anew; the only target that needs npm
	$(BIN)/python -m scripts.console_vendor $(if $(CHECK),--check)
