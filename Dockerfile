# The package with its command line: docker build -t listwatch .
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[httptools]"

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "listwatch[httptools]" \
    && useradd --no-create-home --uid 65532 listwatch
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["listwatch"]
CMD ["--help"]
