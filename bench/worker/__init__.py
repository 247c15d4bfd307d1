"""What runs in every rank of a cell: job file in, one result (or failure) file out."""
