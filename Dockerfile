# Palermo's command as a small image: `docker build -t palermo .`, and then
#   docker run -e PALERMO_URL=amqp://… -v ./jobs:/app:ro palermo worker my_jobs

# Python 3.13.15. docker-compose.yml explains how to update the digest.
FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS build
WORKDIR /source
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY scripts scripts
COPY serializers serializers
COPY palermo palermo
COPY webui webui
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/palermo \
 && python -m venv /opt/uv && /opt/uv/bin/pip install --require-hashes --requirement scripts/uv.txt \
 && UV_PROJECT_ENVIRONMENT=/opt/palermo /opt/uv/bin/uv sync --frozen --no-build --no-install-project \
    --extra fast --extra metrics --extra redis --extra web --extra zstd --group build \
 && /opt/uv/bin/uv pip install --python /opt/palermo --no-deps --no-build-isolation . \
 && /opt/uv/bin/uv pip uninstall --python /opt/palermo setuptools

FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
COPY --from=build /opt/palermo /opt/palermo
RUN useradd --system --no-create-home --home-dir /app palermo
ENV PATH=/opt/palermo/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Put the jobs' modules here: a worker can import from the current directory.
WORKDIR /app
USER palermo
# A container is healthy if its worker answers through the broker. For one of several workers, use check --pidfile.
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s CMD palermo check --this-host
ENTRYPOINT ["palermo"]
CMD ["--help"]
