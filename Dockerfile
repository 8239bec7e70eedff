# SPDX-License-Identifier: Apache-2.0
# Images of HARP (docs/install.md):
#   docker build --target harpd -t harpd .
#   docker build --target job --build-arg JOB_IMAGE=IMAGE -t train .   # IMAGE with the plugin in it
ARG JOB_IMAGE=debian:12-slim

FROM debian:12 AS build
RUN apt-get update && apt-get install --yes --no-install-recommends make
WORKDIR /src
COPY . .
RUN make wheel

# The daemon, one on each node, and harpctl.
FROM debian:12-slim AS harpd
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/dist/ /dist/
RUN python3 -m venv /opt/harp \
    && /opt/harp/bin/pip install --no-cache-dir /dist/*.whl \
    && /opt/harp/bin/harpctl install \
    && rm -r /dist
ENTRYPOINT ["/usr/local/bin/harpd"]

FROM harpd AS plugin
RUN harpctl install --prefix /harp

# A job's image: the plugin where NCCL finds it with nothing else set. It needs no Python.
FROM ${JOB_IMAGE} AS job
COPY --from=plugin /harp/lib/ /usr/local/lib/
RUN ldconfig
