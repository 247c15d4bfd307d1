"""Job file -> processes -> exit status and log. Nothing here imports torch."""
