# itrpipe in a container, for a CPU or for NVIDIA GPUs (docs/install.md):
#
#   docker build --target cpu  --tag itrpipe .
#   docker build --target cuda --tag itrpipe:cuda .
#
# Packages lie in a layer of their own, which changes with pyproject.toml alone; itrpipe itself is a small one on top.

ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS uv
ARG UV=0.13.9
RUN pip install --no-cache-dir "uv==${UV}"

FROM uv AS build
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never VIRTUAL_ENV=/opt/itrpipe
WORKDIR /src

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY stages stages
COPY itrpipe itrpipe
RUN uv build --wheel --out-dir /wheel

# TORCH is the build of torch that `uv pip install --torch-backend` takes.
FROM build AS packages-cpu
ARG TORCH=cpu
COPY pyproject.toml ./
RUN uv venv "$VIRTUAL_ENV" \
 && uv pip install --torch-backend "$TORCH" --requirements pyproject.toml --extra cpu --extra lora --extra serve

FROM build AS packages-cuda
ARG TORCH=cu130
COPY pyproject.toml ./
RUN uv venv "$VIRTUAL_ENV" \
 && uv pip install --torch-backend "$TORCH" --requirements pyproject.toml --extra gpu --extra lora --extra serve

# Any user may write to the home folder, so that `docker run --user` keeps the cache of models there.
FROM python:${PYTHON}-slim-bookworm AS runtime
RUN useradd --create-home --uid 1000 itrpipe \
 && mkdir --parents /home/itrpipe/.cache /data \
 && chown itrpipe: /home/itrpipe/.cache /data \
 && chmod 1777 /home/itrpipe /home/itrpipe/.cache /data
ENV HOME=/home/itrpipe PATH=/opt/itrpipe/bin:$PATH
ENTRYPOINT ["itrpipe"]
WORKDIR /data

FROM runtime AS cuda
# What the container toolkit of NVIDIA reads.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=packages-cuda /opt/itrpipe /opt/itrpipe
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip --python /opt/itrpipe/bin/python install --no-deps --no-index --no-cache-dir /wheel/*.whl
USER 1000

# For .devcontainer: the tools of `make install`, which installs into the checkout.
FROM uv AS dev
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git make \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 1000 --shell /bin/bash itrpipe
USER 1000

# Last, so that `docker build .` makes this one.
FROM runtime AS cpu
COPY --from=packages-cpu /opt/itrpipe /opt/itrpipe
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel \
    pip --python /opt/itrpipe/bin/python install --no-deps --no-index --no-cache-dir /wheel/*.whl
USER 1000
