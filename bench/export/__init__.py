"""The way out: a row as files that other tools train from. Pure text, for `zerostage select config`."""
