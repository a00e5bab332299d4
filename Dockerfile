# The router in a small image. From a checkout:
#
#   docker build -t homing .
#   docker run --rm -p 8080:8080 homing serve --listen 0.0.0.0:8080 --replica http://10.0.0.1:8000
#   docker run --rm -p 8080:8080 -v ./config:/etc/homing:ro homing
#
# A stopping router lets running turns end for up to 20 s: give it that long, `docker stop -t 25`.

FROM python:3.11-slim AS builder
# The modules of the hot path are compiled here; HOMING_COMPILE=1 fails the build if they are not.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
ENV HOMING_COMPILE=1
WORKDIR /src
RUN python -m venv /opt/homing
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY policies ./policies
COPY router ./router
RUN /opt/homing/bin/pip install --no-cache-dir --disable-pip-version-check '.[kubernetes]'

FROM python:3.11-slim
# By number, so that Kubernetes can tell that it is not root.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin homing
COPY --from=builder /opt/homing /opt/homing
# Examples, to be mounted over: the config names policies beside it, and a keys file that must be there.
COPY config /etc/homing
COPY policies /etc/homing/policies
ENV PATH=/opt/homing/bin:$PATH
WORKDIR /etc/homing
USER 10001

# The data port. The admin port, 9090, listens on loopback inside the container: nobody outside reaches it,
# the health check below and `docker exec` do. To open it, set `admin: {listen: 0.0.0.0:9090}` in the config
# and give it a token (HOMING_ADMIN_TOKEN or admin.token_file); without one, the router does not start.
EXPOSE 8080

# /livez needs no token. It says that the process answers; whether a replica can be reached is /readyz's to
# say, and no reason to restart a router. No proxy: an http_proxy in the environment must not get to see it.
# With another admin port, give another check (--health-cmd).
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/opt/homing/bin/python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:9090/livez', timeout=2)"]

ENTRYPOINT ["homing"]
CMD ["serve", "-c", "/etc/homing/router.yaml"]
