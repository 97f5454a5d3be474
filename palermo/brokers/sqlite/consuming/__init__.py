"""Taking jobs from the file and settling them, for the slots of one worker."""
