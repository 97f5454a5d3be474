"""The command `palermo`, which `python -m palermo` runs too."""

from palermo import blocked_signals


def main() -> None:
    """Run the command line. Signals that come while it is imported wait until it is known what they mean."""
    blocked_signals.block()
    from palermo.cli import main as commands

    commands()


if __name__ == "__main__":
    main()
