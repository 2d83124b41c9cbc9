# The image of Paceline: `make image`, or
#   docker build --tag paceline .                                          # for CPUs
#   docker build --tag paceline --build-arg EXTRA=gpu .                    # for GPUs
#   docker build --tag paceline-ray --build-arg EXTRAS=s3,ray .            # with more of the optional parts
# Versions are those of constraints.txt. The kernels are built in the first stage, so the image has no compiler.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# uv trusts the certificates of the system, as pip does: a company's own are mounted or in its base image.
ENV UV_NATIVE_TLS=1
RUN python3 -m venv /opt/paceline && python3 -m venv /opt/uv
COPY constraints.txt pyproject.toml README.md LICENSE wheel_build.py ./
RUN /opt/uv/bin/pip install --quiet --constraint constraints.txt uv
ARG EXTRA=cpu
ARG EXTRAS=s3
COPY src src
RUN /opt/uv/bin/uv pip install --no-cache --compile-bytecode --python /opt/paceline/bin/python \
        --constraint constraints.txt --build-constraints constraints.txt ".[${EXTRA}${EXTRAS:+,${EXTRAS}}]" \
    && /opt/paceline/bin/python -m paceline.kernels \
    && rm -rf /opt/paceline/lib/python3*/site-packages/pip* \
        /opt/paceline/lib/python3*/site-packages/tensorflow/include

FROM ${BASE}
COPY --from=build /opt/paceline /opt/paceline
RUN useradd --create-home --uid 1000 paceline && install --directory --owner paceline /output
ENV PATH=/opt/paceline/bin:$PATH
USER paceline
WORKDIR /output
# A light check, because it runs beside a training: `paceline doctor` loads TensorFlow and measures the disk.
HEALTHCHECK --interval=10m --timeout=2m CMD ["paceline", "--version"]
ENTRYPOINT ["paceline"]
CMD ["--help"]
