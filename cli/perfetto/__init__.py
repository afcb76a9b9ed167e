"""`annotq perfetto`: a job as a trace file for the Perfetto page. In the order of the data:

selection (what is drawn), questions and asking (the SQL behind it), jobs (the ranks), export (one rank after the other), lanes,
region_stack and kernels (slices of a stream), collectives and steps, left_out (what the picture does not show), trace_file,
tracks, interned and wire (the bytes). Beside it archive and manifest (the original traces in a TAR), page (--open).
"""
