# vla-zoo with its benchmarks and trained agents.
#     docker build -t vla-zoo --build-arg PIP_EXTRA_INDEX_URL=INDEX .      INDEX: PyTorch's index of CPU wheels (README.md)
#     docker build -t vla-zoo:cuda --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 .
#     mkdir -p logs
#     docker run --rm --user "$(id -u)" -e HOME=/tmp -v "$PWD/logs:/runs/logs" vla-zoo train --algo ppo --env Toy-Reach
#     docker run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all vla-zoo:cuda doctor
# Without INDEX pip takes PyTorch's default wheels, which bring the CUDA libraries; the CUDA base lets the container see
# the driver.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# Debian 12 has Python 3.11, Ubuntu 24.04 has 3.12: every extra has wheels for both.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/vla-zoo
COPY scripts/setup_system.sh scripts/
# OpenGL, and Vulkan where the distribution or its backports have a Mesa that is new enough.
RUN scripts/setup_system.sh python3 && rm -rf /var/lib/apt/lists/*

COPY . .
ARG EXTRAS=libero,libero-plus,metaworld,maniskill,datasets,optimize,play,plots,quantization,serve,words
ARG PIP_EXTRA_INDEX_URL=
RUN python3 -m venv /opt/venv && /opt/venv/bin/pip install -c constraints.txt ".[$EXTRAS]" ./agents
ENV PATH=/opt/venv/bin:$PATH

RUN useradd --create-home --uid 10001 zoo && mkdir /runs && chown 10001 /runs
USER 10001
WORKDIR /runs
ENTRYPOINT ["vla-zoo"]
CMD ["--help"]
