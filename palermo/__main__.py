"""The `palermo` command, also run by `python -m palermo`."""

from palermo import blocked_signals


def main() -> None:
    """Run the command line. Signals that arrive during its import are blocked until their handlers are installed."""
    blocked_signals.block()
    from palermo.cli import main as commands

    commands()


if __name__ == "__main__":
    main()
