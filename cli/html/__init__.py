"""Pages: the report of a job as one HTML file that needs nothing else."""
