"""Stories of jobs, told once by palermo.testing and once by a real worker."""
