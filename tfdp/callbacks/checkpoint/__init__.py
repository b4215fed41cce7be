"""Checkpoints: all that decides the next step of a training, in one file that is whole or absent.

`archive` is the file, `folder` the files of one training, `model_variables` what a model holds,
`callback_states` what callbacks do, `checkpoint_writer` the thread that writes beside the training,
`data_place` where the training is in its data (`replayed_place` in data that must be read again),
`checkpoint_checks` what may go on from a checkpoint, `agreed_points` where all ranks keep one or
stop.
"""
