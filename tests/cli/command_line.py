"""Running `headrace …` inside the test process against a node."""

from typer.testing import CliRunner

from headrace.base.errors import HeadraceError
from headrace.cli.app import app

ALONE = ("dump-log", "format", "settings", "serve")


class CommandLine:
    def __init__(self, bootstrap=None, config=None):
        """`config`: a file of properties that says how to log in."""
        self.bootstrap = bootstrap
        self.config = config

    def __call__(self, *arguments, stdin=None, fails=False):
        """Standard output; with `fails` what the command complained of."""
        extra = ["-b", self.bootstrap] if arguments[0] not in ALONE and self.bootstrap else []
        extra += ["--command-config", self.config] if self.config else []
        result = CliRunner().invoke(app, [*map(str, (*arguments, *extra))], input=stdin)
        if fails:
            assert result.exit_code == 1, result.output
            return str(result.exception) if isinstance(result.exception, HeadraceError) else result.output
        assert result.exit_code == 0, result.output + str(result.exception)
        return result.stdout
