"""The error that ends a calibration."""


class CalibrateError(Exception):
    """It cannot go on; the text says why."""
