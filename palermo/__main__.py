"""`python -m palermo` is the command `palermo`."""

from palermo.cli import main

if __name__ == "__main__":
    main()
