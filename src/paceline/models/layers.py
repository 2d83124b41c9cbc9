"""What Keras lacks, or computes slowly: a fused BatchNorm, and an activation."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("paceline")
class FusedBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the last axis of four, with an offset.

    It is one operation; Keras 3 has half a dozen, which take a quarter more time over a whole
    ResNet. The moving variance takes the batch's unbiased variance, as the operation gives it.
    """

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, mask: object = None
    ) -> tf.Tensor:
        training, momentum = bool(training) and self.trainable, self.momentum
        moving_mean, moving_variance = (
            tf.convert_to_tensor(v) for v in (self.moving_mean, self.moving_variance)
        )
        beta, nothing = tf.cast(self.beta, tf.float32), tf.constant([], tf.float32)
        outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=tf.cast(self.gamma, tf.float32) if self.scale else tf.ones_like(beta),
            offset=beta,
            mean=nothing if training else moving_mean,
            variance=nothing if training else moving_variance,
            epsilon=self.epsilon,
            is_training=training,
        )
        if training:
            self.moving_mean.assign(moving_mean * momentum + mean * (1.0 - momentum))
            self.moving_variance.assign(moving_variance * momentum + variance * (1.0 - momentum))
        return outputs


@keras.saving.register_keras_serializable("paceline")
class SigmoidGelu(keras.layers.Layer):
    """z sigmoid(1.702 z), the cheaper of the two approximations in Hendrycks and Gimpel 2016."""

    ALPHA = 1.702

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs * keras.ops.sigmoid(self.ALPHA * inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape
