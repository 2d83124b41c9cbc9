"""Predict the images of a Spark DataFrame: `paceline.spark.predict`."""

from paceline.extras.spark_predict import predict

__all__ = ["predict"]
