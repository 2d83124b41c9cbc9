"""`paceline search`: trainings with different settings, on Ray Tune.

`space` has the settings of the trials, `folder` the files of a search, `trials` what is known of
each trial, `trainable` runs one on Ray, `driver` all of them. Every trial is a normal run.
"""
