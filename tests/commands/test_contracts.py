"""Tests that every command fulfils the contract of commands."""

from tests.support.command_contract import CommandContract
from tfm.commands.options import OPTIONS


class TestCommands(CommandContract):
    cases = {
        "quickstart": (),
        "data": ("--config=quickstart", "--workdir={run}"),
        "split": ("--config=quickstart", "--output={out}"),
        "train": ("--config=quickstart", "--workdir={out}", "--warm_start={run}"),
        "sweep": ("{run}.py", "--workdir={out}"),
        "evaluate": ("--workdir={run}", "--output_dir={out}"),
        "compare": ("{run}", "{run}"),
        "translate": ("--workdir={run}", "--output={out}"),
        "generate": ("--workdir={run}", "--prefix=text"),
        "import": ("--from={run}", "--output={out}"),
        "export": ("--workdir={run}", "--output={out}"),
        "visualize": ("--workdir={run}", "--output={out}"),
        "explore": ("--workdir={run}", "--no-browser"),
        "replay": ("--workdir={run}", "--step=1"),
        "status": ("{run}",),
        "list": ("{run}",),
        "systems": (),
    }


def test_every_command_has_a_case():
    assert TestCommands.cases.keys() == OPTIONS.keys()
