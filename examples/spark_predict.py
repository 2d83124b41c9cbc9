"""Predict the classes of all images of a folder on Spark, and write them as a table.

    spark-submit [--master URL] examples/spark_predict.py RUN IMAGES OUT

IMAGES is anything that Spark can read (a folder, hdfs://, s3a://). OUT becomes a folder of Parquet
files with the columns path, label, probability (of the label) and error (if a file is not an
image).
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import array_max

from paceline.spark import predict

run, images, out = sys.argv[1:]
spark = SparkSession.builder.appName("predict").getOrCreate()
files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(images)
predicted = predict(files, run, input="content")
predicted.select(
    "path", "label", array_max("probabilities").alias("probability"), "error"
).write.parquet(out)
spark.stop()
