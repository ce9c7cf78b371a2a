"""What strangers wrote, made fit to be shown: nothing of it runs, loads, or poses as something else."""
