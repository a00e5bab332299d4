"""What two texts begin with alike."""


def common_length(one: bytes, other: bytes) -> int:
    """How many leading bytes are the same. By halving: slices are compared far quicker than bytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
