# tfm on a CPU; on GPUs with --build-arg EXTRAS=cuda, on TPUs with EXTRAS=tpu.
#
#   docker build --tag tfm .
#   docker run --rm --volume "$PWD/runs:/work/runs" --user "$(id -u)" tfm quickstart
#
# docs/clusters.md has more.

ARG PYTHON=3.13
FROM docker.io/library/python:${PYTHON}-slim

# A virtual environment, as the Python of some images belongs to their package manager.
ENV VIRTUAL_ENV=/opt/tfm \
    PATH=/opt/tfm/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1
RUN python -m venv /opt/tfm

# The dependencies before the code: a change of the code alone does not install them again.
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml ./
COPY clusters/requirements.py clusters/
RUN python clusters/requirements.py "$EXTRAS" > requirements.txt \
 && pip install --requirement requirements.txt

COPY LICENSE README.md ./
COPY configs configs
COPY tfm tfm
RUN pip install --no-deps .

# Any user may run it, also one of another number (--user): what it writes goes to /work.
RUN useradd --uid 1000 --home-dir /work tfm \
 && install --directory --owner=tfm --mode=1777 /work
USER tfm
ENV HOME=/work
WORKDIR /work

# tfm is the first process, so that SIGTERM of `docker stop` makes a run save.
ENTRYPOINT ["tfm"]
CMD ["help"]
