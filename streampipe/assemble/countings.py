"""0, 1, 2 and so on as bytes, for `position_ids`: sliced once for each length, and strung together."""

import numpy as np

LONGEST_COUNTING = 65_536
_KEPT = 16_384
_COUNTING = np.arange(LONGEST_COUNTING, dtype=np.uint16).data


class Countings(dict[int, memoryview]):
    """0, 1, 2 and so on in two bytes each, by how many: up to `LONGEST_COUNTING`."""

    def __missing__(self, count: int) -> memoryview:
        if len(self) == _KEPT:
            self.clear()
        counting = self[count] = _COUNTING[:count]
        return counting


countings = Countings()
