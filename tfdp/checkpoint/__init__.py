"""Checkpoints: all that decides the next step of a training, in one file that is whole or absent.

`archive` is the file, `folder` the files of one training, `variables` what a model holds,
`callback_states` what callbacks do, `writer` the thread that writes beside the training.
"""
