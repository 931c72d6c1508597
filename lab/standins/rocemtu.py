"""The MTU of RoCE on a port, which follows that of its netdev."""

SIZES = {5: 4096, 4: 2048, 3: 1024, 2: 512, 1: 256}  # by the number that tools print behind it
HEADERS = 70  # what the driver sets aside of a netdev's MTU: 9000 gives 4096, 1500 gives 1024


def active(netdev_mtu: int) -> tuple[int, int]:
    """RoCE MTU in bytes, and its number."""
    for place, size in SIZES.items():
        if size + HEADERS <= netdev_mtu:
            return size, place
    return 256, 1
