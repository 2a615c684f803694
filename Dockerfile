# Two images of one file, both without root:
#   service  API, control worker, supervisor: no torch, no Ray      docker build --target service .
#   engine   the nodes of a Ray cluster                             docker build --target engine .
# PyPI's torch is the CUDA build. For machines without a GPU, name PyTorch's CPU index:
#   docker build --target engine --build-arg TORCH_INDEX=URL .

ARG PYTHON_IMAGE=python:3.12.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PATH=/opt/venv/bin:$PATH
RUN python -m venv /opt/venv
WORKDIR /src
COPY . .
RUN pip install -c constraints.txt '.[mlflow,otel,postgres,wandb]'

FROM build AS build-engine
# Empty: PyPI's torch, for CUDA.
ARG TORCH_INDEX=""
RUN if [ -n "${TORCH_INDEX}" ]; then pip install -c constraints.txt --index-url "${TORCH_INDEX}" torch; fi \
    && pip install -c constraints.txt '.[cluster,engine,gym]'

FROM ${PYTHON_IMAGE} AS base
RUN groupadd --gid 1000 ratchet \
    && useradd --uid 1000 --gid ratchet --create-home ratchet \
    && install --directory --owner ratchet --group ratchet /var/lib/ratchet /tmp/ray
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    RATCHET_HOME=/var/lib/ratchet
WORKDIR /home/ratchet
USER 1000:1000

FROM base AS engine
COPY --from=build-engine /opt/venv /opt/venv
# The head; a worker joins it with `ray start --address`.
CMD ["ray", "start", "--head", "--dashboard-host=0.0.0.0", "--disable-usage-stats", "--block"]

FROM base AS service
COPY --from=build /opt/venv /opt/venv
EXPOSE 8650
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8650/healthz', timeout=3)"]
CMD ["python", "-m", "api", "--host", "0.0.0.0", "--port", "8650"]
