# The package with its command line: docker build -t listwatch .
FROM python:3.13.5-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY src src
RUN pip wheel --no-cache-dir --constraint requirements.lock --wheel-dir /wheels ".[fast]"

FROM python:3.13.5-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "listwatch[fast]" \
    && useradd --no-create-home --uid 65532 listwatch
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
# Kubernetes has its own probes. For Docker, serve health at this port: --health-port 8080, or
# --listen-addr 127.0.0.1:8080 for observe.
HEALTHCHECK CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=5)"]
ENTRYPOINT ["listwatch"]
CMD ["--help"]
