# Everything a developer, CI or a curious visitor runs. `make help` lists the targets.
SHELL := /bin/sh
# Compiled tests are kept, also where the environment says otherwise: to compile them takes longer than to run most.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
BIN := .venv/bin
DISTRIBUTIONS := kit $(wildcard backends/*) $(wildcard examples/*-backend)
DEMO_PROGRAMS := blkid losetup mount mkfs.ext4 resize2fs e2fsck mkfs.xfs xfs_growfs
TEST_PROGRAMS := $(DEMO_PROGRAMS) mkfs.btrfs cryptsetup pvcreate thin_check sfdisk strace \
	ceph-mon ceph-osd ceph-mgr rbd rbd-nbd ip nsenter openssl qemu-storage-daemon
KUBERNETES_PROGRAMS := runc iptables mmdebstrap busybox ip nsenter setpriv openssl ps /usr/lib/cni/bridge
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider --durations=8 --durations-min=10
# In a mount namespace of its own: a container that starts beside the tests copies the mounts of its namespace, and each
# copy keeps a device in use for a moment.
ROOT_PYTEST := $(if $(filter 0,$(shell id -u)),unshare --mount )$(PYTEST)
# Tests that need device-mapper run where it is: on this machine or in a guest.
DEVICE_MAPPER := $(BIN)/python tests/guest/run.py --user-mode --unless device-mapper --memory 3G --timeout $(if $(MATRIX),21600,3600) -- \
	unshare --mount $(PYTEST) -q -p no:xdist -p no:hypothesispytest -m devicemapper
LVM = $(shell grep -l devicemapper backends/lvm/tests/test_*.py)
LVM_KIT := $(addprefix backends/lvm/tests/test_,contract.py sanity_lvm.py)
# Without a guest they find what others leave in this kernel, so that nothing may run beside them.
LVM_FIRST = $(if $(shell (: < /dev/mapper/control) 2>/dev/null && echo here),--first lvm-kit --first lvm-rest)

# Tests that need disks that come and go (hotplug.py); the kit on them is for the matrix, in full it runs on moto alone.
NVME := $(addprefix backends/ebs/tests/test_,devices_nvme.py sanity_ebs.py $(if $(MATRIX),contract_nvme.py))

.DEFAULT_GOAL := help
.PHONY: help demo test check unit format lint types integration lvm lvm-kit lvm-rest encryption rbd rbd-cluster rbd-guest ebs attack sanity deploy kubernetes nomad manifests guest bench matrix check-site check-release release proto docs site lock lock-site generated dev clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: ## a volume's whole life on this machine, from a fresh clone (root)
	@scripts/system-packages $(DEMO_PROGRAMS)
	@$(MAKE) --no-print-directory dev
	@$(BIN)/csi-multi demo

# The longest parts begin first, so that little runs alone at the end.
test: ## everything: check, integration, lvm, encryption, rbd, ebs, attack, sanity, deploy (root; installs what it needs and says so)
	@scripts/system-packages $(TEST_PROGRAMS) mmdebstrap
	@scripts/guest-packages
	@CSI_SANITY="$$(scripts/csi-sanity)"; export CSI_SANITY; scripts/run-parts --first check $(LVM_FIRST) \
		$(if $(BEGIN_WITHIN),--begin-within $(BEGIN_WITHIN)) \
		integration $(if $(LVM_FIRST),,lvm-kit) rbd-cluster $(if $(LVM_FIRST),,lvm-rest) attack ebs rbd-guest encryption deploy sanity

dev: .venv/ready ## the virtual environment with the core, all backends and the example, from requirements.lock

.venv/ready: requirements.lock pyproject.toml $(wildcard kit/pyproject.toml backends/*/pyproject.toml examples/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	@echo "installing the locked Python packages into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . $(addprefix -e ,$(DISTRIBUTIONS))
	@touch $@

check: format lint types generated unit ## format, lint, strict types, generated files, unit tests (no root, three minutes)

unit: dev
	@$(PYTEST) -q -n auto --dist worksteal -m "not root and not slow and not sanity and not devicemapper and not ec2 and not ceph and not krbd and not deploy and not site and not release and not kubernetes and not nomad"

format: dev
	@$(BIN)/ruff format --check --quiet .

lint: dev
	@$(BIN)/ruff check --quiet .

types: dev
	@$(BIN)/mypy
	@$(BIN)/mypy -p bench
	@$(BIN)/mypy -p scripts.release
	@$(BIN)/mypy examples/third-party-backend/csi_multi_ramdisk examples/network-backend/csi_multi_filer

integration: dev ## real loop devices, real filesystems, real mounts (root)
	@scripts/system-packages $(TEST_PROGRAMS)
	@$(ROOT_PYTEST) -q -m "root and not slow and not sanity and not devicemapper and not ceph and not krbd"

lvm: dev ## the lvm backend on real LVM: here, or in a guest where this kernel lacks it (root, long; ARGS=...)
	@scripts/system-packages $(TEST_PROGRAMS)
	@CSI_SANITY="$$(scripts/csi-sanity)" $(if $(ARGS),$(DEVICE_MAPPER) $(ARGS), \
		$(MAKE) --no-print-directory -j2 --output-sync=target lvm-kit lvm-rest)

lvm-kit: # two halves side by side: a guest has use for one core only, and imports no more than it needs
	@$(DEVICE_MAPPER) $(LVM_KIT)

lvm-rest:
	@$(DEVICE_MAPPER) $(filter-out $(LVM_KIT),$(LVM))

encryption: dev ## encrypted volumes, with cryptsetup: here, or in a guest where this kernel lacks dm-crypt (root, minutes)
	@scripts/system-packages $(TEST_PROGRAMS)
	@CSI_SANITY="$$(scripts/csi-sanity)" $(DEVICE_MAPPER) tests/encryption tests/node/test_encrypted_crashes.py

ebs: dev ## the ebs backend on moto's EC2, and in a guest that is an EC2 instance with NVMe disks (root, minutes)
	@scripts/system-packages $(TEST_PROGRAMS)
	@$(PYTEST) -q -n 2 --dist worksteal -m ec2
	@CSI_SANITY="$$(scripts/csi-sanity)" $(BIN)/python -m backends.ebs.tests.hotplug --timeout 1800 -- \
		$(PYTEST) -q -p no:hypothesispytest $(NVME)

rbd: dev ## the rbd backend on a real Ceph cluster, and in a guest whose kernel maps its images (root, minutes)
	@scripts/system-packages $(TEST_PROGRAMS)
	@CSI_SANITY="$$(scripts/csi-sanity)" $(MAKE) --no-print-directory -j2 --output-sync=target rbd-guest rbd-cluster

rbd-cluster: # side by side: a guest has use for one core only
	@$(ROOT_PYTEST) -q -n 2 --dist worksteal -m "ceph and not krbd"

rbd-guest:
	@$(BIN)/python -m backends.rbd.tests.guest --timeout $(if $(MATRIX),7200,2400) -- \
		$(PYTEST) -q -m krbd backends/rbd

attack: dev ## kills, races, hostile input, hung commands (root, minutes)
	@scripts/system-packages $(TEST_PROGRAMS)
	@$(ROOT_PYTEST) -q -m "slow and not sanity and not devicemapper and not ceph and not krbd"

sanity: dev ## csi-sanity 5.6.0 over the loop backend: mount, block, one endpoint, split endpoints (root)
	@scripts/system-packages $(TEST_PROGRAMS)
	@CSI_SANITY="$$(scripts/csi-sanity)" $(ROOT_PYTEST) -q -m "sanity and not devicemapper and not krbd"

deploy: dev ## chart, manifests and job files held against their APIs; the images' steps in clean roots (root; Go)
	@scripts/system-packages mmdebstrap
	@HELM="$$(scripts/helm)" DEPLOY_PARSER="$$(scripts/deploy-parser)" GO="$$(scripts/go)" \
		$(PYTEST) -q -n 2 --dist loadfile -m deploy tests/deploy

# Namespaces of its own, and a shell as the first process, which reaps: when it ends, all that Nomad started ends.
nomad: dev ## the jobs of config/nomad on a real Nomad with two clients (root; Go; SOURCES=DIRECTORY, see docs/testing.md)
	@scripts/system-packages $(TEST_PROGRAMS) busybox
	@NOMAD="$$(scripts/nomad)" && export NOMAD && \
		unshare --mount --net --pid --fork --kill-child --mount-proc sh -c '"$$@"; exit $$?' sh \
		$(PYTEST) -q -m nomad $(or $(ARGS),tests/orchestrators)

kubernetes: dev ## a real Kubernetes, built and started here, and the driver on it by its chart (root; Go; SOURCES=...)
	@$(if $(CLUSTER),,scripts/system-packages $(KUBERNETES_PROGRAMS))
	@SOURCES="$(SOURCES)" $(BIN)/python -m tests.orchestrators.kubernetes.run $(if $(CLUSTER),--$(CLUSTER)) \
		$(if $(NODES),--nodes=$(NODES)) $(if $(ARGS),-- $(ARGS))

manifests: ## render config/kubernetes from the chart
	@scripts/manifests

guest: dev ## a shell in a QEMU guest that has this machine's files and a kernel of its own (root)
	@$(BIN)/python tests/guest/run.py --modules loop,dm-thin-pool,dm-snapshot,dm-raid $(ARGS)

matrix: dev ## the slow, complete versions of what `make test` meets once (root)
	@scripts/system-packages $(TEST_PROGRAMS)
	@MATRIX=1 $(ROOT_PYTEST) -q -m "slow and not sanity and not devicemapper and not ceph and not krbd"
	@MATRIX=1 CSI_SANITY="$$(scripts/csi-sanity)" $(ROOT_PYTEST) -q -m "sanity and not devicemapper and not krbd"
	@$(MAKE) --no-print-directory lvm encryption rbd ebs MATRIX=1
	@$(MAKE) --no-print-directory check-site check-release
	@$(if $(or $(SOURCES),$(wildcard .tools/kubernetes/bin/livenessprobe)),$(MAKE) --no-print-directory kubernetes,\
		echo "left out: make kubernetes, which needs SOURCES=DIRECTORY, see docs/testing.md")

check-site: dev site ## headless Chromium follows every link of the documentation site, and searches (root)
	@scripts/system-packages chromium
	@$(PYTEST) -q -m site tests/site

check-release: dev ## a whole release in a copy of the tree, installed in clean environments (Go)
	@HELM="$$(scripts/helm)" $(PYTEST) -q -m release tests/release

bench: dev ## speed as ratios against the bare operation, or ARGS=--peers: other drivers (root, Go)
	@scripts/system-packages $(TEST_PROGRAMS)
	@$(BIN)/python bench/run.py $(ARGS)

proto: dev ## generate code from protos/csi.proto
	@$(BIN)/python -m grpc_tools.protoc -I csi_multi/_proto=protos --python_out=. --pyi_out=. csi_multi/_proto/csi.proto

docs: dev ## generate docs/parameters.md from the schemas, and docs/performance.md from bench/kept.json
	@$(BIN)/python scripts/parameters.py > docs/parameters.md
	@$(BIN)/python scripts/performance.py > docs/performance.md

# Not --quiet: the warnings that it hides would not end a strict build.
site: .tools/site/ready ## the documentation site, in build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 .tools/site/bin/mkdocs build

.tools/site/ready: requirements-site.lock
	@echo "installing the locked Python packages of the documentation site into .tools/site"
	@$(PYTHON) -m venv .tools/site
	@.tools/site/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-site.lock
	@touch $@

generated: dev
	@scripts/check-generated

release: dev ## prepare a release of all distributions in dist/: VERSION=x.y.z; commits and publishes nothing (Go)
	@$(BIN)/python -m scripts.release "$(VERSION)"

PIP_COMPILE = $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: dev ## pin the newest allowed Python packages in requirements.lock
	@$(PIP_COMPILE) --output-file requirements.lock requirements.in

lock-site: dev ## the same for the documentation site, in requirements-site.lock
	@$(PIP_COMPILE) --output-file requirements-site.lock requirements-site.in

clean: ## remove what the other targets made
	@rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis bench/results build dist
