"""The command line: its own verbs, and those that installed packages add by the entry point group csi_multi.verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from csi_multi.commands.cli import main, parser

GREET = """
    def add(verbs):
        verb = verbs.add_parser("greet", help="say hello to somebody")
        verb.add_argument("name")
        verb.set_defaults(run=lambda options: print("hello", options.name) or 1)
"""


@pytest.fixture
def provide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """provide("greet", source) installs a package whose function `add` adds a verb, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def package(verb: str, source: str) -> str:
        name = f"csi_verb_{verb}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{name}.py").write_text("\n".join(line[4:] for line in source.splitlines()))
        facts = tmp_path / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(f"[csi_multi.verbs]\n{verb} = {name}:add\n")
        return name

    return package


def test_a_verb_of_a_package_is_in_the_help_and_runs(
    provide: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    provide("greet", GREET)

    with pytest.raises(SystemExit) as left:
        main(["--help"])
    shown = capsys.readouterr().out
    code = main(["greet", "world"])

    assert left.value.code == 0
    assert "greet" in shown
    assert "say hello to somebody" in shown
    assert all(verb in shown for verb in ("serve", "check", "backends", "explain", "import", "demo"))
    assert (code, capsys.readouterr().out) == (1, "hello world\n")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("    import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("    def add(verbs):\n        raise RuntimeError('no terminal')", "RuntimeError: no terminal"),
        ("    x = 1", "AttributeError: "),
    ],
)
def test_a_broken_verb_is_named_and_the_others_work(
    source: str, problem: str, provide: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    provide("broken", source)
    provide("greet", GREET)

    code = main(["greet", "world"])

    shown = capsys.readouterr()
    assert (code, shown.out) == (1, "hello world\n")
    assert f"csi-multi: verb 'broken' is not available: {problem}" in shown.err


def test_our_own_verbs_do_not_import_the_verbs_of_packages(
    provide: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = provide("broken", "    import no_such_library")
    config = tmp_path / "csi.yaml"
    config.write_text("driver: {}\n")

    code = main(["check", str(config)])

    assert code == 2
    assert name not in sys.modules
    assert "not available" not in capsys.readouterr().err


def test_without_arguments_the_usage_names_all_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])

    assert left.value.code == 2
    assert "VERB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        (["serve", "--config", "f"], "_serve"),
        (["check", "f"], "_check"),
        (["backends", "--json"], "_backends"),
        (["explain", "--config", "f", "--storageclass", "g"], "_explain"),
        (["import", "--config", "f", "--instance", "i", "v"], "_import"),
        (["certificates", "--directory", "d"], "_certificates"),
        (["kubernetes", "startup-taint", "--driver", "d"], "_startup_taint"),
        (["kubernetes", "drain", "--driver", "d"], "_drain"),
        (["demo"], "_demo"),
    ],
)
def test_every_verb_has_a_function_that_runs_it(arguments: list[str], run: str) -> None:
    assert parser(arguments).parse_args(arguments).run.__name__ == run


def test_an_error_about_a_key_does_not_pass_its_control_characters_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "csi.yaml"
    file.write_text('driver: {name: multi.csi}\nbackends: {"\\e[31mred\\nline": {kind: loop}}\n')

    code = main(["check", str(file)])

    assert code == 2
    assert "backends.\\x1b[31mred\\nline: an instance name" in capsys.readouterr().err
