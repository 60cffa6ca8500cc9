"""Instances come from installed packages; a broken one is named, and the others serve."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csi_multi.config.document import ConfigError
from csi_multi.config.settings import load_config
from csi_multi.contract import FailedPrecondition, Unavailable
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances
from csi_multi.loading.registry import Registry

GOOD = "from csi_multi_testing.memory import MemoryBackend as Own"
HEAD = (
    "from csi_multi_testing.memory import MemoryBackend\nfrom csi_multi.contract import backend as b, errors, params\n"
)


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., Registry]:
    """loaded(fast="kind", slow="kind, capacity: 5") is the registry of such a configuration."""

    def registry(default: str = "", **instances: str) -> Registry:
        lines = ["driver:", "  name: multi.csi.example.com", *([f"  default_backend: {default}"] if default else [])]
        lines += ["backends:", *(f"  {name}: {{kind: {kind}}}" for name, kind in instances.items())]
        file = tmp_path / "csi.yaml"
        file.write_text("\n".join(lines))
        return load_instances(load_config(file), LocalHost())

    return registry


def test_instances_of_a_kind_are_made_from_their_own_keys(install: Any, loaded: Any) -> None:
    install("mem", GOOD)

    registry = loaded(fast="mem, capacity: 5", slow="mem")

    assert {one.name: one.backend.config.capacity for one in registry} == {"fast": 5, "slow": 1 << 50}
    assert registry.get("fast").backend.setting.instance == "fast"
    assert not registry.broken


def test_a_kind_that_is_not_installed_stops_the_start_with_the_nearest_one(install: Any, loaded: Any) -> None:
    install("memory", GOOD)

    with pytest.raises(ConfigError, match=r":4: backends\.fast\.kind: unknown kind 'memroy'; did you mean 'memory'\?"):
        loaded(fast="memroy")


@pytest.mark.parametrize(("controller", "node"), [(True, True), (True, False), (False, True)])
def test_an_instance_hears_whether_its_process_serves_the_controller_and_the_node(
    controller: bool, node: bool, install: Any, tmp_path: Path
) -> None:
    install("mem", GOOD)
    file = tmp_path / "csi.yaml"
    file.write_text("driver: {name: multi.csi.example.com}\nbackends: {fast: {kind: mem}}")

    registry = load_instances(load_config(file), LocalHost(), controller=controller, serves_node=node)

    setting = registry.get("fast").backend.setting
    assert (setting.controller, setting.serves_node) == (controller, node)


def test_an_instance_can_ask_kubernetes_for_the_node_that_the_configuration_names(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mem", GOOD)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "csi.yaml"
    file.write_text("driver: {name: multi.csi.example.com, node: node-7}\nbackends: {fast: {kind: mem}}")
    setting = load_instances(load_config(file), LocalHost()).get("fast").backend.setting

    with pytest.raises(FailedPrecondition, match=r"node 'node-7': Kubernetes cannot be asked .* run in a pod"):
        setting.node_record()


@pytest.mark.parametrize("between", [False, True])
def test_a_kind_that_is_installed_twice_stops_the_start_with_both_names(
    between: bool, install: Any, loaded: Any
) -> None:
    one = install("mem", GOOD)
    if between:
        install("other", GOOD)
    two = install("mem", GOOD)

    with pytest.raises(ConfigError, match="remove one") as found:
        loaded(fast="mem")
    assert one in str(found.value)
    assert two in str(found.value)


def test_a_kind_installed_twice_that_nobody_uses_does_not_matter(install: Any, loaded: Any) -> None:
    for kind in ("mem", "mem", "good"):
        install(kind, GOOD)

    assert [one.name for one in loaded(fast="good")] == ["fast"]


BROKEN = {
    "import fails": ("import absent_module_of_nobody", "ModuleNotFoundError"),
    "import raises": ("raise OSError('no library')", "no library"),
    "import asserts": ("assert False, 'not on this machine'", "not on this machine"),
    "import exits": ("import sys; sys.exit('goodbye')", "goodbye"),
    "syntax": ("def", "SyntaxError"),
    "no such attribute": ("Other = 1", "Own"),
    "not a class": ("Own = 1", "is not a class derived from"),
    "a function": ("def Own(config, setting): ...", "is not a class derived from"),
    "another class": ("class Own: ...", "is not a class derived from"),
    "an instance": (f"{HEAD}Own = MemoryBackend", ""),
    "no contract": (
        "from csi_multi.contract.backend import Backend\nclass Own(Backend): ...",
        "does not declare the contract",
    ),
    "odd contract": (f"{HEAD}class Own(MemoryBackend): contract = '1.0'", "does not declare the contract"),
    "text contract": (f"{HEAD}class Own(MemoryBackend): contract = (1, '0')", "does not declare the contract"),
    "newer major": (f"{HEAD}class Own(MemoryBackend): contract = (2, 0)", "written for contract (2, 0)"),
    "older major": (f"{HEAD}class Own(MemoryBackend): contract = (0, 9)", "written for contract (0, 9)"),
    "newer minor": (f"{HEAD}class Own(MemoryBackend): contract = (1, 99)", "written for contract (1, 99)"),
    "half a feature": (
        f"{HEAD}class Own(MemoryBackend, b.NodeHealthReporter):\n    def node_volume_health(self, handle): ...",
        "lacks node_storage_health",
    ),
    "constructor fails": (
        f"{HEAD}class Own(MemoryBackend):\n    def __init__(self, config, setting): raise KeyError('surprise')",
        "its constructor raised KeyError: 'surprise'",
    ),
    "odd schema": (
        f"{HEAD}from typing import Annotated\nclass P(params.Schema, frozen=True):\n"
        "    size: Annotated[int | None, params.Doc('bytes', ge=1)] = None\n"
        "class Own(MemoryBackend): Parameters = P",
        "Parameters",
    ),
    "no schema": (f"{HEAD}class Own(MemoryBackend): Config = dict", "Config"),
    "import interrupts": ("raise KeyboardInterrupt", "cannot be imported: KeyboardInterrupt"),
    "import has no words": (
        "class Mute(Exception):\n    def __str__(self): raise KeyError\nraise Mute",
        "cannot be imported: Mute: Mute (its text cannot be read",
    ),
    "constructor exits": (
        f"{HEAD}import sys\nclass Own(MemoryBackend):\n    def __init__(self, config, setting): sys.exit(3)",
        "its constructor raised CallExited: SystemExit",
    ),
    "a class that cannot be looked at": (
        f"{HEAD}class Odd(type(MemoryBackend)):\n    def __getattribute__(cls, name): raise OSError('not now')\n"
        "class Own(MemoryBackend, metaclass=Odd): ...",
        "OSError: not now",
    ),
    "a property as method": (
        f"{HEAD}class Own(MemoryBackend):\n    capacity = property(lambda self: 1 / 0)",
        "capacity is a property, not a method",
    ),
    "a value as method": (f"{HEAD}class Own(MemoryBackend): check = 5", "check is a int, not a method"),
    "an asynchronous method": (
        f"{HEAD}class Own(MemoryBackend):\n    async def create_volume(self, request): ...",
        "create_volume is asynchronous",
    ),
    "a generator as method": (
        f"{HEAD}class Own(MemoryBackend):\n    def list_volumes(self, page): yield",
        "list_volumes is asynchronous or a generator",
    ),
    "an object that cannot be looked at": (
        f"{HEAD}class Own(MemoryBackend):\n    def __getattribute__(self, name):\n"
        "        if name == 'capacity': raise OSError('not now')\n        return super().__getattribute__(name)",
        "its methods cannot be wrapped: OSError: not now",
    ),
    "a method that cannot be guarded": (
        f"{HEAD}class Sticky:\n    def __get__(self, one, cls): return print\n    def __set__(self, one, value): ...\n"
        "class Own(MemoryBackend): capacity = Sticky()",
        "its methods cannot be wrapped: TypeError: a data descriptor (Sticky) prevents wrapping the method capacity",
    ),
    "odd access modes": (f"{HEAD}class Own(MemoryBackend): access_modes = ['RWO']", "access_modes is not a frozenset"),
    "odd growth": (f"{HEAD}class Own(MemoryBackend): online = 'yes'", "online is not a bool"),
}
del BROKEN["an instance"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_package_takes_down_its_own_instances_only(case: str, install: Any, loaded: Any) -> None:
    source, reason = BROKEN[case]
    install("bad", source)
    install("good", GOOD)

    registry = loaded(one="bad", two="good", three="bad")

    assert [one.name for one in registry] == ["two"]
    assert set(registry.broken) == set(registry.degraded()) == {"one", "three"}
    assert reason in registry.broken["one"]
    with pytest.raises(Unavailable, match="'one' is broken"):
        registry.get("one")
    with pytest.raises(Unavailable, match="'one' is broken"):
        registry.choose("one")
    assert registry.choose("two").kind == "good"


def test_an_import_that_hangs_is_given_up_and_the_others_serve(
    install: Any, loaded: Any, monkeypatch: pytest.MonkeyPatch, stream: Any
) -> None:
    monkeypatch.setattr("csi_multi.loading.loader.IMPORT_LIMIT", 0.2)
    name = install("bad", "import time\ntime.sleep(2)")
    install("good", GOOD)

    registry = loaded(one="bad", two="good", three="bad")

    assert [one.name for one in registry] == ["two"]
    assert registry.degraded()["one"] == f"{name} 1.0: its import did not return within 0.2 s"
    assert set(registry.broken) == {"one", "three"}
    assert f"backend one is broken: {name} 1.0" in stream.getvalue()


def test_a_constructor_that_hangs_is_given_up_once_and_the_others_serve(
    install: Any, loaded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csi_multi.loading.loader.CONSTRUCTOR_LIMIT", 0.3)
    slow = (
        "import sys, time\nmade = sys.modules['csi_made']\nclass Own(MemoryBackend):\n"
        "    def __init__(self, config, setting): made.append(1); time.sleep(2)"
    )
    name = install("bad", f"{HEAD}{slow}")
    install("good", GOOD)
    constructed: list[int] = []
    monkeypatch.setitem(sys.modules, "csi_made", constructed)

    registry = loaded(one="bad", two="good", three="bad", four="bad")

    assert len(constructed) == 1, "not once for each of its instances"
    assert [one.name for one in registry] == ["two"]
    assert registry.broken["four"] == f"{name} 1.0: the constructor of 'one' did not return within 0.3 s"


def test_an_instance_knows_the_package_it_comes_from(install: Any, loaded: Any) -> None:
    name = install("mem", GOOD)

    assert loaded(fast="mem").get("fast").package == f"{name} 1.0"


def test_a_constructor_that_refuses_its_configuration_stops_the_start(install: Any, loaded: Any) -> None:
    source = "    def __init__(self, config, setting): raise errors.InvalidArgument('capacity is odd')"
    install("mem", f"{HEAD}class Own(MemoryBackend):\n{source}")

    with pytest.raises(ConfigError, match=r":4: backends\.fast: capacity is odd"):
        loaded(fast="mem")


def test_a_wrong_key_of_an_instance_stops_the_start(install: Any, loaded: Any) -> None:
    install("mem", GOOD)

    with pytest.raises(ConfigError, match=r":4: backends\.fast: unknown key 'capasity'; did you mean 'capacity'\?"):
        loaded(fast="mem, capasity: 5")
