# docker build -t slater . && docker run --rm -v "$PWD/out:/slater/runs" slater
# Runs the demo; its table is printed and its picture is out/demo/demo.png.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends build-essential make && rm -rf /var/lib/apt/lists/*
WORKDIR /slater
COPY . .
RUN make install
CMD ["make", "demo"]
