"""`python -m palermo` runs the command `palermo`."""

from palermo.cli import main

if __name__ == "__main__":
    main()
