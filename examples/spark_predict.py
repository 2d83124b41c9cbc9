"""What is on the pictures of a folder, by the model of a run, as a table:

spark-submit [--master URL] examples/spark_predict.py RUN PICTURES OUT

PICTURES is anything Spark can read (a folder, hdfs://, s3a://); OUT becomes a folder of Parquet files with path, label, the label's
probability, and what is wrong with files that are no pictures.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import array_max

from paceline.spark import predict

run, pictures, out = sys.argv[1:]
spark = SparkSession.builder.appName("predict").getOrCreate()
files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(pictures)
predicted = predict(files, run, input="content")
predicted.select(
    "path", "label", array_max("probabilities").alias("probability"), "error"
).write.parquet(out)
spark.stop()
