"""How quantities are written for people."""


def mib(value: float) -> str:
    """Write bytes in MiB (1024^2), from 1 GiB on in GiB."""
    return f"{value / 2**30:,.2f} GiB" if value >= 2**30 else f"{value / 2**20:,.2f} MiB"
