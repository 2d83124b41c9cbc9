"""Training from Python: settings by name, models and data of a notebook, Keras callbacks."""
