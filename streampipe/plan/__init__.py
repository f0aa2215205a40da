"""ORDER: which document goes into which sequence of which step. Pure: no I/O, no torch, no tokens.

manifests ──> blend ──> epoch order ──> round ──> windows ──> packing ──> sequence order ──> slices of a rank

* `blend.py`           weights as exact fractions; where each source's axis stands at each round
* `epoch_order.py`     a source as an endless axis of frames, epoch after epoch
* `pieces.py`          documents cut to pieces that fit a sequence, with the reason for what is lost
* `windows.py`         frames dealt to localities, borders drawn so that windows fill whole sequences
* `packing.py`         pieces of a window to sequences: best_fit, concat, none
* `sequence_order.py`  sequences of all windows to one canonical order
* `balance.py`         sequences ordered by cost instead of at random, and windows made alike for it
* `round_plan.py`      the result, as arrays
* `plan_config.py`     how large rounds are, and how their sequences are ordered
* `planner.py`         composes the above: `Planner.round(r)`
* `schedule.py`        rounds cut into steps: `Schedule.next()`
* `documents.py`       the documents of a step packed by themselves (`batch_by: documents`)
* `slices.py`          which sequences of a step a dp_rank gets
"""
