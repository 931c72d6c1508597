"""Fixtures that more than one folder of tests uses."""

import os
import signal
from pathlib import Path

import pytest

from toolchain import environment, provide

# A shell starts what runs in its background with SIGINT ignored, and every child would inherit that: tests of Ctrl-C
# would press it in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder of the checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which ``pulumi`` and its plugins run; the toolchain is built when it is not there.

    It has a Pulumi home of its own with the plugins. A test sets PULUMI_BACKEND_URL.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PULUMI_BACKEND_URL", "PULUMI_CREDENTIALS_PATH", "PULUMI_STACK", "PULUMI_CONFIG_PASSPHRASE_FILE"):
            patch.delenv(name, raising=False)
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # a program that is compiled anew each time is no user's
        patch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
        found = provide.provide()
        result = environment.make(found, tmp_path_factory.mktemp("state"), "version", os.environ)
    home = tmp_path_factory.mktemp("home")
    (home / "plugins").symlink_to((found.home or provide.user_home()) / "plugins")
    del result["PULUMI_BACKEND_URL"]
    return result | {
        "PATH": os.pathsep.join((str(found.cli.parent), result["PATH"])),
        "PULUMI_HOME": str(home),
        "PULUMI_CREDENTIALS_PATH": str(home),
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeat at the end what failed first: other failures may follow from it, and a log is read from its end."""
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    reports = [report for report in failed if isinstance(report, pytest.TestReport)]
    if len(reports) > 1:
        first = min(reports, key=lambda report: report.stop)
        terminalreporter.section(f"the first of {len(reports)} that failed: {first.nodeid} ({first.when})")
        terminalreporter.write_line(first.longreprtext[-4000:])
